#!/bin/sh
# The tables of docs/benchmarks.md about scheduling, one part after the other or those that are named:
#   bench/tables.sh [cost fidelity static priority lengths elastic overload prefixes order isolation
#                    live live_priority live_lengths live_elastic live_prefixes live_isolation]
# `live...` are the same over HTTP: one thread computes, another core is for HTTP and the client.
# HADAL: the program (build/release/hadal), MODEL: what it runs (mini), LONG: tokens of the long prompt of
# `isolation` (1800), SECONDS_LIVE: of `live` (300), RATE: requests a second that the server just manages, RATES: of `live` (it and three
# times it), SCALES: how fast the loads of `priority` and `elastic` come, HEAD: the first requests of those, `lengths` and `live_prefixes` alone
# (0: all), POLICIES: of `priority` and `lengths`, all simulated and live. For a model larger than the embedded one: SLOW (1): simulated loads come so many times as slowly, and good ones may take so many times as long; TRIM (0: all):
# requests of a load that the model computes, at most, of `order` three times as many, with short beginnings and answers. LOADS: those of `fidelity`.
# MODEL=FILE SLOW=20 TRIM=8 LONG=8192 RATE=2 is for 1.2 GB on two cores.
# Needs a machine on which nothing else runs: `cost` first, the rest soon after it. `fidelity` measures profiles of its own, between its runs.
set -e
SLOW=${SLOW:-1} TRIM=${TRIM:-0} HEAD=${HEAD:-0} POLICIES=${POLICIES:-fcfs priority}
HADAL=${HADAL:-build/release/hadal} MODEL=${MODEL:-mini} LONG=${LONG:-1800} SECONDS_LIVE=${SECONDS_LIVE:-300}
OUT=${OUT:-/tmp/hadal-tables} COST=${COST:-$OUT/machine.cost} RATE=${RATE:-25} TRACES=bench/traces
HEADER=arrival_s,prompt_tokens,output_tokens,prefix_group,prefix_tokens,class
mkdir -p "$OUT"
over() { awk "BEGIN { print $1 / $SLOW }"; }
slower() { echo $(($1 * SLOW)); }
slo= # what classes are promised, where the defaults are not for such a model
[ "$SLOW" -eq 1 ] || for c in interactive:1000:60000 standard:10000:300000 batch:60000:3600000; do
    slo="$slo --slo ${c%%:*}:ttft:$(slower "$(echo $c | cut -d: -f2)") --slo ${c%%:*}:wait:$(slower "$(echo $c | cut -d: -f3)")"
done
first() { # N (0: all), trace, name of the copy
    [ "$1" -gt 0 ] || set -- 100000000 "$2" "$3"
    head -n $(($1 + 1)) "$2" >"$OUT/$3" && echo "$OUT/$3"
}
trim() { first "$TRIM" "$1" trimmed.csv; }
say() { printf '\n### %s\n' "$*"; }
sim() { say "$@"; "$HADAL" sim --cost "$COST" --seed 1 "$@"; }
compare() { say "$@"; "$HADAL" bench compare "$@" --seed 1; }
start_server() { # options; its process is $server
    rm -f "$OUT/port"
    "$HADAL" serve -m "$MODEL" -t 1 --port 0 --port-file "$OUT/port" "$@" >"$OUT/serve.log" 2>&1 &
    server=$!
    trap 'kill $server 2>/dev/null || :' EXIT
    until curl -sf "http://127.0.0.1:$(cat "$OUT/port" 2>/dev/null)/health" >/dev/null; do
        kill -0 $server
        sleep 0.2
    done
}
stop_server() {
    kill $server
    wait $server || :
    trap - EXIT
}
client() { say "$@"; "$HADAL" bench serve --base-url "http://127.0.0.1:$(cat "$OUT/port")" --seed 1 --request-timeout 86400 "$@"; }
counted() { curl -s "http://127.0.0.1:$(cat "$OUT/port")/metrics" | grep -E "^($1)"; }
slots='--max-num-seqs 32' # of priority and lengths, simulated and live
unbounded='--queue-timeout 0 --slo interactive:wait:1e9 --slo standard:wait:1e9 --slo batch:wait:1e9'
bounds_mixed="interactive/ttft:$(slower 1000),interactive/tpot:$(slower 200),batch/ttft:$(slower 60000)"
bounds_bursty="ttft:$(slower 2000),tpot:$(slower 150)"
spread_load="--num-prompts 300 --request-rate $(over 60) --random-input-len 128 --random-output-len 48 --random-range-ratio 0.8"

cost() {
    large= # steps of seconds, and a KV cache that is to fit into memory
    [ "$SLOW" -eq 1 ] || large='--seconds 0 --max-num-batched-tokens 128 --max-num-seqs 32 --max-model-len 1024'
    "$HADAL" bench "$MODEL" --save-cost "$COST" -t 1 --clock processor --seconds 0.3 $large
}
fidelity() {
    each='--seconds 0.04'
    [ "$SLOW" -eq 1 ] || each='--seconds 0 --max-num-batched-tokens 128'
    for t in ${LOADS:-chat full bursty}; do
        compare "$MODEL" --trace "$(trim $TRACES/$t.csv)" -t 1 --clock processor --max-num-seqs 32 --runs 3 \
            --save-cost "$OUT/$t.cost" $each
    done
}
static() {
    compare --simulated "$COST" $spread_load --max-num-seqs 32
    compare --simulated "$COST" $spread_load --policies static:32,paged:32,dynamic --max-tokens-in-paged-kv-cache 6000
    compare "$MODEL" --trace "$(trim $TRACES/full.csv)" -t 1 --clock processor --max-num-seqs 32 --runs 3
}
priority() {
    load=$(first "$HEAD" $TRACES/mixed.csv mixed.csv)
    for f in ${SCALES:-4.3 5 6 10 15}; do for p in $POLICIES; do
        sim --trace "$load" --load-scale "$(over "$f")" $slots --scheduling-policy "$p" $slo \
            --goodput $bounds_mixed
    done; done
}
# The same requests all at once, and the short and the long ones apart: what the mix takes beyond the sum is lost.
parts_of_mixed() {
    first "$1" $TRACES/mixed.csv mixed.csv
    grep -v ',batch$' "$OUT/mixed.csv" >"$OUT/short.csv"
    grep -v ',interactive$' "$OUT/mixed.csv" >"$OUT/long.csv"
    echo "$OUT/short.csv" "$OUT/long.csv"
}
lengths() {
    loads=$(parts_of_mixed "$HEAD")
    for p in $POLICIES; do for t in $loads; do
        sim --trace "$t" --load-scale 1e6 $slots --scheduling-policy "$p" $unbounded
    done; done
}
elastic() {
    load=$(first "$HEAD" $TRACES/bursty.csv bursty.csv)
    for f in ${SCALES:-4 10 12 16}; do for e in --no-elastic-batching --elastic-batching; do
        sim --trace "$load" --load-scale "$(over "$f")" $e $slo --goodput $bounds_bursty
    done; done
}
overload() {
    for r in "$RATE" $((3 * RATE)); do
        sim --num-prompts $((300 * r)) --request-rate "$r" --random-input-len 128 --random-output-len 48 --random-range-ratio 0.8 \
            --goodput ttft:$(slower 10000),tpot:$(slower 250) --slo standard:wait:$(slower 8000) --slo standard:itl:$(slower 250)
    done
}
clients() { # 16 on one beginning, 20 requests each
    printf '%s\n' $HEADER >"$OUT/clients.csv"
    awk 'BEGIN { for (i = 0; i < 320; i++) printf "%.3f,%d,16,all,512,\n", i / 16 * 0.5, 520 + i * 7 % 60 }' >>"$OUT/clients.csv"
}
prefixes() {
    clients
    for t in "$OUT/clients.csv" $TRACES/shared.csv $TRACES/agents.csv; do
        sim --trace "$t" --load-scale "$(over 1)"
        compare "$MODEL" --trace "$(trim "$t")" -t 1 --clock processor --policies dynamic
    done
    for r in prefix round-robin least-loaded; do
        sim --generate sessions --random-input-len 24 --random-output-len 8 --num-prompts 40000 --request-rate "$(over 400)" --think-time $(slower 2) --replicas 100 --router $r
    done
}
# 96 requests of 12 beginnings, INT4 weights, FP16 KV, with a cache that does not hold all beginnings and with one that does.
# Then 16 sequences side by side with long answers and an F32 cache: pages as they come, brought together, and large ones.
order() {
    n=96 begin=500 answer=600
    [ "$TRIM" -eq 0 ] || n=$((3 * (TRIM < 3 ? 3 : TRIM))) begin=100 answer=100
    printf '%s\n' $HEADER >"$OUT/groups.csv"
    awk -v n=$n -v b=$begin 'BEGIN { for (i = 0; i < n; i++) printf "0,%d,32,g%d,%d,\n", b + 8 + i % 7, i % int(n / 8), b }' >>"$OUT/groups.csv"
    q4="$OUT/q4.gguf" # a model that is quantised already is taken as it is
    "$HADAL" quantize --type Q4_0 --force "$MODEL" "$q4" || q4=$MODEL
    for kv in $((n / 8 * begin * 2 / 3 + 96)) $((n / 8 * begin * 8 / 3 + 384)); do for p in none fragmentation prefix length; do
        compare "$q4" --kv-cache-dtype f16 -t 1 --clock processor --policies dynamic --trace "$OUT/groups.csv" \
            --reorder-policy $p --max-tokens-in-paged-kv-cache $kv --max-num-seqs 16
    done; done
    for s in 3 8; do for p in none prefix length; do
        sim --trace $TRACES/agents.csv --load-scale "$(over $s)" --reorder-policy $p --max-tokens-in-paged-kv-cache 8192 --max-num-seqs 16
    done; done
    printf '%s\n' $HEADER >"$OUT/side.csv"
    awk -v a=$answer 'BEGIN { for (i = 0; i < 16; i++) printf "0,64,%d,,,\n", a }' >>"$OUT/side.csv"
    for p in "--compaction-pages 0" "--compaction-pages 16" "--compaction-pages 0 --block-size 64"; do
        compare "$MODEL" --kv-cache-dtype f32 -t 1 --clock processor --policies dynamic --runs 2 --trace "$OUT/side.csv" $p
    done
    for b in 16 64; do
        say --attention --block-size $b
        "$HADAL" bench --attention -t 1 --depth 4096 --batch 1,16 --prompt 64 --seconds 0.5 --block-size $b
    done
}
# 32 sequences that decode, alone; with a long prompt; with that in the absorbed form; and in one step, which 32 gaps between tokens meet: more than 1 % of
# them for answers of 100 tokens, so that p99 shows it. Then what a step's activations take: the log of a server that starts.
disturbed() { # tokens of an answer: quiet.csv, disturbed.csv, whose prompt comes amid the answers
    printf '%s\n' $HEADER >"$OUT/quiet.csv"
    awk -v n="$1" 'BEGIN { for (i = 0; i < 32; i++) printf "0,16,%d,,,standard\n", n }' >>"$OUT/quiet.csv"
    { cat "$OUT/quiet.csv"; echo "$([ "$SLOW" -eq 1 ] && echo 0.5 || echo 5),$LONG,1,,,standard"; } >"$OUT/disturbed.csv"
}
isolation() {
    for n in 200 100; do
        disturbed $n
        sim --trace "$OUT/quiet.csv"
        sim --trace "$OUT/disturbed.csv" --queue-timeout 0
        sim --trace "$OUT/disturbed.csv" --queue-timeout 0 --exact
        sim --trace "$OUT/disturbed.csv" --queue-timeout 0 --no-enable-chunked-context --max-num-batched-tokens "$LONG"
    done
    # Prompts of class standard that come amid the layers of such as are batch.
    { printf '%s\n' $HEADER
        awk 'BEGIN { for (i = 0; i < 30; i++) print "0,16,400,,,interactive" }'
        awk -v b="$LONG" -v s="$SLOW" 'BEGIN { for (i = 1; i <= 6; i++) {
            printf "%g,%d,1,,,batch\n%g,400,1,,,standard\n", s * i * 0.5, b, s * (i * 0.5 + 0.2) } }'
    } >"$OUT/between.csv"
    sim --trace "$OUT/between.csv" --queue-timeout 0 --max-num-seqs 48 --max-num-batched-tokens "$LONG" $slo
    for n in 512 "$LONG"; do
        say "workspace of a step of $n tokens"
        start_server --max-num-batched-tokens "$n"
        grep -o 'workspace_bytes[^,} ]*' "$OUT/serve.log"
        stop_server
    done
}
# At what the server just manages and at three times that.
live() {
    start_server --slo "standard:wait:$(slower 8000)" --slo "standard:itl:$(slower 250)"
    for r in ${RATES:-$RATE $((3 * RATE))}; do
        client --request-rate "$r" --num-prompts $((SECONDS_LIVE * r)) --random-input-len 128 --random-output-len 48 \
            --random-range-ratio 0.8 --goodput "ttft:$(slower 10000),tpot:$(slower 250)"
        counted 'hadal_(requests_refused|refusal_seconds_(bucket.*le="0.0|count)|deadlines_lost)|vllm:(prompt_tokens|generation_tokens|num_preempt)'
    done
    stop_server
}
live_priority() {
    load=$(first "$HEAD" $TRACES/mixed.csv mixed.csv)
    for f in ${SCALES:-6 9 12}; do for p in $POLICIES; do
        say "$p"
        start_server $slots --scheduling-policy "$p" $slo
        client --trace "$load" --load-scale "$(over "$f")" --goodput $bounds_mixed
        stop_server
    done; done
}
live_lengths() {
    loads=$(parts_of_mixed "$HEAD")
    for p in $POLICIES; do for t in $loads; do
        say "$p"
        start_server $slots --scheduling-policy "$p" $unbounded
        client --trace "$t" --load-scale 1e6
        stop_server
    done; done
}
live_elastic() {
    load=$(first "$HEAD" $TRACES/bursty.csv bursty.csv)
    for f in ${SCALES:-4 10 12}; do for e in --no-elastic-batching --elastic-batching; do
        say $e
        start_server $e $slo
        client --trace "$load" --load-scale "$(over "$f")" --goodput $bounds_bursty
        stop_server
    done; done
}
# What could be reused at all is what the simulation tells of the same load.
live_prefixes() {
    clients
    for t in "$OUT/clients.csv" $TRACES/shared.csv $TRACES/agents.csv; do
        load=$(first "$HEAD" "$t" prefixes.csv)
        start_server $unbounded
        client --trace "$load" --load-scale "$(over 1)"
        counted 'vllm:(prefix_cache|prompt_tokens)'
        stop_server
        sim --trace "$load" --load-scale "$(over 1)" $unbounded >"$OUT/prefixes.log"
        grep 'prompt tokens' "$OUT/prefixes.log"
    done
}
live_isolation() {
    for n in 200 100; do
        disturbed $n
        for options in '' "--no-enable-chunked-context --max-num-batched-tokens $LONG"; do
            start_server $options $unbounded
            [ -n "$options" ] || client --trace "$OUT/quiet.csv"
            client --trace "$OUT/disturbed.csv"
            stop_server
        done
    done
}
if [ $# -gt 0 ]; then parts=$*; else parts='cost fidelity static priority lengths elastic overload prefixes order isolation live live_priority live_lengths live_elastic live_prefixes live_isolation'; fi
for part in $parts; do $part; done
