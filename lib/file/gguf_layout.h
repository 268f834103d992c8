/* Numbers of the GGUF format that its reader and its writer share. Inside lib/file. */
#ifndef HD_FILE_GGUF_LAYOUT_H
#define HD_FILE_GGUF_LAYOUT_H

/* Types of metadata values, by their number in the file. */
enum hd_gguf_type {
    HD_GGUF_U8,
    HD_GGUF_I8,
    HD_GGUF_U16,
    HD_GGUF_I16,
    HD_GGUF_U32,
    HD_GGUF_I32,
    HD_GGUF_F32,
    HD_GGUF_BOOL,
    HD_GGUF_STR,
    HD_GGUF_ARRAY,
    HD_GGUF_U64,
    HD_GGUF_I64,
    HD_GGUF_F64,
    HD_GGUF_TYPE_COUNT
};

enum {
    HD_GGUF_ALIGN = 32,          /* of tensors, unless general.alignment says otherwise */
    HD_GGUF_NAME_BYTES_MAX = 63, /* of a tensor's name */
};

#endif
