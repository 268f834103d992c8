# random_v2lite.py FOLDER [LAYERS] [--fp8]: DeepSeek-V2-Lite's true shape with random BF16 weights, as a checkpoint has them; with --fp8 the same weights,
# all but the router, the embeddings and the head, as FP8 with a scale for each block of 128 by 128. Needs a GPU, torch, safetensors.
import json, os, sys, torch, math
from concurrent.futures import ThreadPoolExecutor
from safetensors.torch import save_file
is_fp8 = "--fp8" in sys.argv; args = [a for a in sys.argv[1:] if a != "--fp8"]
out = args[0]; L = int(args[1]) if len(args) > 1 else 27
os.makedirs(out, exist_ok=True)
c = dict(architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", vocab_size=102400, hidden_size=2048, intermediate_size=10944,
  moe_intermediate_size=1408, num_hidden_layers=L, num_attention_heads=16, num_key_value_heads=16, n_shared_experts=2, n_routed_experts=64,
  num_experts_per_tok=6, routed_scaling_factor=1.0, kv_lora_rank=512, q_lora_rank=None, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128,
  topk_method="greedy", n_group=1, topk_group=1, norm_topk_prob=False, scoring_func="softmax", first_k_dense_replace=1, moe_layer_freq=1,
  rms_norm_eps=1e-6, rope_theta=10000.0, max_position_embeddings=163840, hidden_act="silu", tie_word_embeddings=False, bos_token_id=100000,
  eos_token_id=100001, attention_bias=False, torch_dtype="bfloat16",
  rope_scaling=dict(type="yarn", factor=40, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1, mscale=0.707, mscale_all_dim=0.707))
if is_fp8: c["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128])
json.dump(c, open(out + "/config.json", "w"))
g = torch.Generator(device="cuda"); g.manual_seed(1)
D = 2048
def rnd(n, k): return (torch.randn(n, k, generator=g, device="cuda") * (1.0 / math.sqrt(k))).bfloat16()
def put(t, name, w):
    if not is_fp8:
        t[name] = w.cpu(); return
    n, k = w.shape; rows, cols = -(-n // 128), -(-k // 128)
    b = torch.zeros(rows * 128, cols * 128, device="cuda"); b[:n, :k] = w.float(); b = b.view(rows, 128, cols, 128)
    scale = b.abs().amax(dim=(1, 3)) / 448
    q = (b / scale[:, None, :, None]).to(torch.float8_e4m3fn).view(rows * 128, cols * 128)[:n, :k]
    t[name] = q.contiguous().cpu(); t[name + "_scale_inv"] = scale.cpu()
def norm(n): return (torch.rand(n, generator=g, device="cuda") * 0.8 + 0.6).bfloat16().cpu()
def layer(i):
    p = f"model.layers.{i}."; t = {}
    t[p + "input_layernorm.weight"] = norm(D); t[p + "post_attention_layernorm.weight"] = norm(D)
    a = p + "self_attn."
    put(t, a + "q_proj.weight", rnd(16 * 192, D)); put(t, a + "kv_a_proj_with_mqa.weight", rnd(576, D)); t[a + "kv_a_layernorm.weight"] = norm(512)
    put(t, a + "kv_b_proj.weight", rnd(16 * 256, 512)); put(t, a + "o_proj.weight", rnd(D, 2048))
    m = p + "mlp."
    def ffn(q, f):
        put(t, q + "gate_proj.weight", rnd(f, D)); put(t, q + "up_proj.weight", rnd(f, D)); put(t, q + "down_proj.weight", rnd(D, f))
    if i == 0: ffn(m, 10944)
    else:
        t[m + "gate.weight"] = rnd(64, D).cpu(); ffn(m + "shared_experts.", 2816)
        for e in range(64): ffn(f"{m}experts.{e}.", 1408)
    return t
with ThreadPoolExecutor(8) as ex:
    fs = []
    for i in range(L): fs.append(ex.submit(save_file, layer(i), f"{out}/model-{i + 1:05d}-of-{L + 1:05d}.safetensors"))
    t = {"model.embed_tokens.weight": torch.randn(102400, D, generator=g, device="cuda").bfloat16().cpu(), "model.norm.weight": norm(D), "lm_head.weight": rnd(102400, D).cpu()}
    fs.append(ex.submit(save_file, t, f"{out}/model-{L + 1:05d}-of-{L + 1:05d}.safetensors"))
    for f in fs: f.result()
m = {}
from safetensors import safe_open
for n in sorted(os.listdir(out)):
    if n.endswith(".safetensors"):
        with safe_open(out + "/" + n, "pt") as f:
            for k in f.keys(): m[k] = n
json.dump(dict(metadata={}, weight_map=m), open(out + "/model.safetensors.index.json", "w"))
print("made", len(m), "tensors")
