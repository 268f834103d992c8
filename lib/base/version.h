/* The program's version, one place. */
#ifndef HD_BASE_VERSION_H
#define HD_BASE_VERSION_H

#define HD_VERSION "0.1.0"

#endif
