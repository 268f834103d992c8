/* The texts of the markers, each written once. Which of them are tokens is the tokenizer's to say;
 * the bars are U+FF5C (but for HD_EOT's), the low blocks U+2581. Private to lib/text. */
#ifndef HD_TEXT_MARKERS_H
#define HD_TEXT_MARKERS_H

#define HD_BOS "<｜begin▁of▁sentence｜>"
#define HD_EOS "<｜end▁of▁sentence｜>"
#define HD_USER "<｜User｜>"
#define HD_ASSISTANT "<｜Assistant｜>"
#define HD_SYSTEM "<｜System｜>"
#define HD_REMINDER "<｜latest_reminder｜>"
#define HD_EOT "<|EOT|>"
#define HD_THINK "<think>"
#define HD_THINK_END "</think>"
#define HD_DSML "｜DSML｜"
#define HD_CALLS "<｜tool▁calls▁begin｜>"
#define HD_CALLS_END "<｜tool▁calls▁end｜>"
#define HD_CALL "<｜tool▁call▁begin｜>"
#define HD_CALL_END "<｜tool▁call▁end｜>"
#define HD_SEP "<｜tool▁sep｜>"
#define HD_OUTPUTS "<｜tool▁outputs▁begin｜>"
#define HD_OUTPUTS_END "<｜tool▁outputs▁end｜>"
#define HD_OUTPUT "<｜tool▁output▁begin｜>"
#define HD_OUTPUT_END "<｜tool▁output▁end｜>"

/* Quick tasks (V4): HD_TASK(name) for each. */
#define HD_TASKS(HD_TASK)                                                                          \
    HD_TASK(action)                                                                                \
    HD_TASK(query) HD_TASK(authority) HD_TASK(domain) HD_TASK(title) HD_TASK(read_url)
#define HD_TASK_MARKER(name) "<｜" #name "｜>"

#endif
