# transformers_cases.py FOLDER FILE: last logits of random prompts by transformers in float32, as `hadal eval --cases` reads them; and how far its BF16 is off.
import json, sys, torch, time
from transformers import AutoModelForCausalLM
src, dst = sys.argv[1:3]
torch.backends.cuda.matmul.allow_tf32 = False; torch.backends.cudnn.allow_tf32 = False
g = torch.Generator(); g.manual_seed(7)
lens = [1, 3, 17, 64, 65, 128, 200, 257, 300, 511, 512, 700, 1024, 33, 90, 150]
ids = [torch.randint(0, 100000, (n,), generator=g) for n in lens]
def run(dtype):
    t = time.time()
    m = AutoModelForCausalLM.from_pretrained(src, dtype=dtype, device_map="cuda")
    out = []
    with torch.no_grad():
        for x in ids:
            l = m(x[None].cuda()).logits[0].float()
            nll = torch.nn.functional.cross_entropy(l[:-1], x[1:].cuda(), reduction="none") if len(x) > 1 else torch.zeros(0)
            out.append((l[-1].cpu(), l.argmax(-1).cpu(), nll.cpu()))
    print(dtype, "in", round(time.time() - t, 1), "s", flush=True)
    del m; torch.cuda.empty_cache()
    return out
a = run(torch.float32)
json.dump({"cases": [dict(ids=x.tolist(), last_logits=[round(v, 5) for v in o[0].tolist()], top1=o[1].tolist(), nll=o[2].tolist()) for x, o in zip(ids, a)]}, open(dst, "w"))
b = run(torch.bfloat16)
kl = []; same = n = 0
for p, q in zip(a, b):
    lp, lq = torch.log_softmax(p[0].double(), -1), torch.log_softmax(q[0].double(), -1)
    kl.append((lp.exp() * (lp - lq)).sum().item()); same += (p[1] == q[1]).sum().item(); n += len(p[1])
print("transformers BF16 from F32: KL mean %.4g max %.4g, arg-max %d of %d, max logit error %.4g" % (sum(kl) / len(kl), max(kl), same, n, max((p[0] - q[0]).abs().max().item() for p, q in zip(a, b))))
