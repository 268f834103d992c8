/* The embedded model: models/mini/mini-bf16.gguf, put into the program by the assembler. */
#include "engine/impl.h"

#ifndef HADAL_EMBEDDED_MODEL
#error "HADAL_EMBEDDED_MODEL: the path of models/mini/mini-bf16.gguf, set by CMakeLists.txt"
#endif

/* 64-byte alignment: tensors lie at multiples of 32 in the file, and are read in place. */
__asm__(".section .rodata.embedded_model,\"a\",@progbits\n"
        ".balign 64\n"
        ".global hd_embedded_begin\n"
        ".hidden hd_embedded_begin\n"
        "hd_embedded_begin:\n"
        ".incbin \"" HADAL_EMBEDDED_MODEL "\"\n"
        ".global hd_embedded_end\n"
        ".hidden hd_embedded_end\n"
        "hd_embedded_end:\n"
        ".balign 64\n"
        ".previous\n");

extern const char hd_embedded_begin[], hd_embedded_end[];

hd_str hd_embedded_model(void) {
    return (hd_str){hd_embedded_begin, (size_t)(hd_embedded_end - hd_embedded_begin)};
}
