/* The table of chat encodings: texts, and nothing but texts. ⏎ below is a newline; what a row's
 * models were trained on is in DeepSeek's tokenizer_config.json (up to V3.1) or in the Python
 * encoder beside the model (since V3.2). docs/chat.md has the table for people. */
#include "text/chat_impl.h"

/* ---- V1, V2: bos, then {system}⏎⏎, User: {text}⏎⏎, Assistant: {text}eos ---- */

static const char *const text_marker[] = {HD_BOS, HD_EOS, NULL};
static const hd_chat_turns v2_turns = {
    .systems = HD_SYSTEMS_IN_PLACE,
    .system_end = "\n\n",
    .user = "User: ",
    .user_end = "\n\n",
    .past = "Assistant: ",
    .past_end = HD_EOS,
    .answers_any = true,
    .answer = "Assistant:",
};

/* ---- coder instruct V1: with its own system text when there is none ---- */

static const char *const coder_marker[] = {HD_BOS, HD_EOT, NULL};
static const hd_chat_turns coder_turns = {
    .systems = HD_SYSTEMS_IN_PLACE,
    .system_default =
        "You are an AI programming assistant, utilizing the Deepseek Coder model, developed by "
        "Deepseek Company, and you only answer questions related to computer science. For "
        "politically sensitive questions, security and privacy issues, and other non-computer "
        "science questions, you will refuse to answer\n",
    .user = "### Instruction:\n",
    .user_end = "\n",
    .past = "### Response:\n",
    .past_end = "\n" HD_EOT "\n",
    .answers_any = true,
    .answer = "### Response:\n",
};

/* ---- V2.5, V3 and R1: markers for turns; tools as type, name and a fence ---- */

/* clang-format off */
#define FENCED_TOOLS                                                                               \
    .tools = "\n\n## Tools\n\n### Function\n\nYou have the following functions available:\n\n",    \
    .tool = "```json\n",                                                                           \
    .tool_end = "\n```\n",                                                                         \
    .tool_format =                                                                                 \
        "\nTo call a function, end your reply with a block in exactly this format:\n"              \
        HD_CALLS HD_CALL "function" HD_SEP "FUNCTION_NAME\n"                                       \
        "```json\n{\"argument\": \"value\"}\n```" HD_CALL_END HD_CALLS_END "\n\n"                  \
        "FUNCTION_NAME is one of the functions above. The fence holds one JSON object: the "       \
        "arguments, as the function's parameters describe them. Several calls stand in the same "  \
        "block, each between " HD_CALL " and " HD_CALL_END ", separated by a new line.",           \
    .calls = HD_CALLS,                                                                             \
    .calls_end = HD_CALLS_END,                                                                     \
    .call = HD_CALL "function" HD_SEP,                                                             \
    .call_args = "\n```json\n",                                                                    \
    .call_end = "\n```" HD_CALL_END,                                                               \
    .call_join = "\n",                                                                             \
    .outputs = HD_OUTPUTS,                                                                         \
    .outputs_end = HD_OUTPUTS_END,                                                                 \
    .output = HD_OUTPUT,                                                                           \
    .output_end = HD_OUTPUT_END,                                                                   \
    .output_join = "\n"
/* clang-format on */

static const char *const v3_marker[] = {HD_BOS, HD_EOS, HD_USER, HD_ASSISTANT, NULL};
static const hd_chat_turns v3_turns = {
    .system_join = "\n\n",
    .user = HD_USER,
    .past = HD_ASSISTANT,
    .past_end = HD_EOS,
    .answers_any = true,
    .answer = HD_ASSISTANT,
    FENCED_TOOLS,
};

/* Without thinking: what an empty thought looks like. DeepSeek has no text for it, people use this.
 */
#define R1_TURNS                                                                                   \
    .system_join = "\n\n", .user = HD_USER, .past = HD_ASSISTANT, .past_end = HD_EOS,              \
    .answers_any = true, .drop = HD_DROP_TO_LAST,                                                  \
    .answer = HD_ASSISTANT HD_THINK "\n\n" HD_THINK_END "\n\n",                                    \
    .answer_thinking = HD_ASSISTANT HD_THINK "\n", .think = HD_THINK "\n",                         \
    .think_end = "\n" HD_THINK_END "\n\n", FENCED_TOOLS

static const char *const r1_marker[] = {HD_BOS,   HD_EOS,       HD_USER, HD_ASSISTANT,
                                        HD_THINK, HD_THINK_END, NULL};
static const hd_chat_turns r1_turns = {R1_TURNS};
static const hd_chat_turns distill_turns = {.systems = HD_SYSTEMS_LAST_ONLY, R1_TURNS};

/* ---- V3.1: </think> before every answer that does not think ---- */

static const char *const v31_marker[] = {HD_BOS,       HD_EOS,   HD_USER, HD_ASSISTANT, HD_THINK,
                                         HD_THINK_END, HD_CALLS, HD_CALL, HD_SEP,       NULL};
static const hd_chat_turns v31_turns = {
    .system_join = "\n\n",
    .user = HD_USER,
    .past = HD_ASSISTANT HD_THINK_END,
    .past_end = HD_EOS,
    .drop = HD_DROP_TO_FIRST,
    .answer = HD_ASSISTANT HD_THINK_END,
    .answer_thinking = HD_ASSISTANT HD_THINK,
    .think = HD_THINK,
    .think_end = HD_THINK_END,
    .tools = "\n\n## Tools\nYou have access to the following tools:\n",
    .tool_format =
        "\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n" HD_CALLS HD_CALL
        "tool_call_name" HD_SEP "tool_call_arguments" HD_CALL_END
        "{additional_tool_calls}" HD_CALLS_END "\n\nWhere:\n"
        "- `tool_call_name` must be an exact match to one of the available tools\n"
        "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters "
        "Schema\n"
        "- For multiple tool calls, chain them directly without separators or spaces",
    .calls = HD_CALLS,
    .calls_end = HD_CALLS_END,
    .call = HD_CALL,
    .call_args = HD_SEP,
    .call_end = HD_CALL_END,
    .output = HD_OUTPUT,
    .output_end = HD_OUTPUT_END,
};

/* ---- V3.2: DSML as plain text ---- */

/* clang-format off */
#define TAG "<｜DSML｜"
#define END "</｜DSML｜"

static const hd_chat_dsml v32_dsml = {
    .block = TAG "function_calls>",
    .block_end = END "function_calls>",
    .invoke = TAG "invoke name=\"",
    .invoke_end = END "invoke>",
    .param = TAG "parameter name=\"",
    .param_end = END "parameter>",
    .tools =
        "## Tools\n\n"
        "You have access to a set of tools you can use to answer the user's question.\n"
        "You can invoke functions by writing a \"" TAG "function_calls>\" block like the following "
        "as part of your reply to the user:\n"
        TAG "function_calls>\n"
        TAG "invoke name=\"$FUNCTION_NAME\">\n"
        TAG "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
        END "parameter>\n"
        "...\n"
        END "invoke>\n"
        TAG "invoke name=\"$FUNCTION_NAME2\">\n"
        "...\n"
        END "invoke>\n"
        END "function_calls>\n\n"
        "String and scalar parameters should be specified as is without any escaping or quotes, "
        "while lists and objects should use JSON format. The \"string\" attribute should be set to "
        "\"true\" for string type parameters and \"false\" for other types (numbers, booleans, "
        "arrays, objects).\n\n"
        "If the thinking_mode is enabled, then after function results you should strongly consider "
        "outputting a thinking block. Here is an example:\n\n"
        TAG "function_calls>\n"
        "...\n"
        END "function_calls>\n\n"
        "<function_results>\n"
        "...\n"
        "</function_results>\n\n"
        HD_THINK "...thinking about results" HD_THINK_END "\n\n"
        "Here are the functions available in JSONSchema format:\n"
        "<functions>\n",
    .tools_end = "</functions>\n",
    .results = "\n\n<function_results>",
    .results_end = "\n</function_results>",
    .result = "\n<result>",
    .result_end = "</result>",
};

/* ---- V4 and V4.1: the same with other tags. B: the block's name, S: a space before names ---- */

#define V4_TOOLS(B, S)                                                                             \
    .block = TAG S B ">",                                                                          \
    .block_end = END S B ">",                                                                      \
    .invoke = TAG S "invoke name=\"",                                                              \
    .invoke_end = END S "invoke>",                                                                 \
    .param = TAG S "parameter name=\"",                                                            \
    .param_end = END S "parameter>",                                                               \
    .tools =                                                                                       \
        "## Tools\n\n"                                                                             \
        "You have access to a set of tools to help answer the user's question. You can invoke "    \
        "tools by writing a \"" TAG S B ">\" block like the following:\n\n"                        \
        TAG S B ">\n"                                                                              \
        TAG S "invoke name=\"$TOOL_NAME\">\n"                                                      \
        TAG S "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"          \
        END S "parameter>\n"                                                                       \
        "...\n"                                                                                    \
        END S "invoke>\n"                                                                          \
        TAG S "invoke name=\"$TOOL_NAME2\">\n"                                                     \
        "...\n"                                                                                    \
        END S "invoke>\n"                                                                          \
        END S B ">\n\n"                                                                            \
        "String parameters should be specified as is and set `string=\"true\"`. For all other "    \
        "types (numbers, booleans, arrays, objects), pass the value in JSON format and set "       \
        "`string=\"false\"`.\n\n"                                                                  \
        "If thinking_mode is enabled (triggered by " HD_THINK "), you MUST output your complete "  \
        "reasoning inside " HD_THINK "..." HD_THINK_END " BEFORE any tool calls or final response.\n\n" \
        "Otherwise, output directly after " HD_THINK_END " with tool calls or final response.\n\n" \
        "### Available Tool Schemas\n\n",                                                          \
    .tools_end =                                                                                   \
        "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke "  \
        "tool calls.\n",                                                                           \
    .result = "<tool_result>",                                                                     \
    .result_end = "</tool_result>",                                                                \
    .has_user_turns = true
/* clang-format on */

static const char *const v41_marker[] = {HD_BOS,   HD_EOS,       HD_USER,   HD_ASSISTANT,
                                         HD_THINK, HD_THINK_END, HD_SYSTEM, NULL};
static const hd_chat_dsml v4_dsml = {V4_TOOLS("tool_calls", ""), .effort = HD_EFFORT_WORDS};
static const hd_chat_dsml preview_dsml = {V4_TOOLS("tool_calls", ""), .effort = HD_EFFORT_MAX_ONLY};
static const hd_chat_dsml v41_dsml = {V4_TOOLS("calls", " "), .effort = HD_EFFORT_NUMBER,
                                      .has_system = true};

/* ---- the table ---- */

static const char *const no_token[] = {NULL};
static const char *const end_at_user[] = {HD_USER, NULL};
static const char *const end_at_eot[] = {HD_EOT, NULL};

const hd_chat_encoding hd_chat_rows[] = {
    {.name = "deepseek_v2",
     .alias = "deepseek_v1",
     .models = "deepseek-llm chat, MoE 16B chat, V2 and V2-Lite chat, Coder-V2 instruct",
     .marker = text_marker,
     .end_token = no_token,
     .strip_space = true,
     .turns = &v2_turns},
    {.name = "deepseek_coder",
     .models = "deepseek-coder instruct (V1)",
     .marker = coder_marker,
     .end_token = end_at_eot,
     .turns = &coder_turns},
    {.name = "deepseek_v3",
     .alias = "deepseek_v2.5",
     .models = "V2.5, V3, V3-0324",
     .marker = v3_marker,
     .tools = HD_TOOLS_TOKENS,
     .end_token = end_at_user,
     .turns = &v3_turns},
    {.name = "deepseek_r1",
     .models = "R1, R1-0528",
     .marker = r1_marker,
     .thinking = HD_CHAT_ALWAYS,
     .tools = HD_TOOLS_TOKENS,
     .end_token = end_at_user,
     .strip_newlines = true,
     .turns = &r1_turns},
    {.name = "deepseek_r1_distill",
     .models = "R1-Distill-Qwen, R1-Distill-Llama",
     .marker = r1_marker,
     .thinking = HD_CHAT_ALWAYS,
     .tools = HD_TOOLS_TOKENS,
     .end_token = end_at_user,
     .strip_newlines = true,
     .turns = &distill_turns},
    {.name = "deepseek_v3.1",
     .models = "V3.1, V3.1-Terminus, V3.2-Exp",
     .marker = v31_marker,
     .thinking = HD_CHAT_HYBRID,
     .tools = HD_TOOLS_TOKENS,
     .end_token = end_at_user,
     .turns = &v31_turns},
    {.name = "deepseek_v3.2",
     .models = "V3.2 (December 2025)",
     .marker = r1_marker,
     .thinking = HD_CHAT_HYBRID,
     .tools = HD_TOOLS_DSML,
     .end_token = end_at_user,
     .dsml = &v32_dsml},
    {.name = "deepseek_v4",
     .models = "V4-Flash, V4-Pro (0731)",
     .marker = r1_marker,
     .thinking = HD_CHAT_UNLESS_ASKED,
     .tools = HD_TOOLS_DSML,
     .end_token = end_at_user,
     .dsml = &v4_dsml},
    {.name = "deepseek_v4_preview",
     .models = "V4 preview: of efforts it knows max alone",
     .marker = r1_marker,
     .thinking = HD_CHAT_UNLESS_ASKED,
     .tools = HD_TOOLS_DSML,
     .end_token = end_at_user,
     .dsml = &preview_dsml},
    {.name = "deepseek_v4.1",
     .models = "V4.1",
     .marker = v41_marker,
     .thinking = HD_CHAT_UNLESS_ASKED,
     .tools = HD_TOOLS_DSML,
     .end_token = end_at_user,
     .dsml = &v41_dsml},
};
const size_t hd_chat_row_count = HD_COUNT_OF(hd_chat_rows);
