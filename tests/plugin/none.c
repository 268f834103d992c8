/* A shared object that is no backend at all. */
int hd_nothing_of_a_backend(void);
int hd_nothing_of_a_backend(void) { return 1; }
