"""Small launches of every kind of kernel, to be watched by compute-sanitizer: `scripts/gpu_check.sh` runs it so."""

from __future__ import annotations

import checks
import torch

for dtype in (torch.float32, torch.bfloat16):
    for build in checks.SOFTMAX.values():
        for n, classes in ((9, 3), (33, 10), (9, 16), (5, 100), (3, 1001), (3, 4096), (2, 20_001)):
            z, target = checks.draw(n, classes, dtype)
            checks.value_and_gradient(build(classes).to(checks.DEVICE), z, target)
    z = torch.randn(2, 21, 5, 3, device=checks.DEVICE).to(dtype)
    checks.value_and_gradient(
        checks.SOFTMAX["focal"](21).to(checks.DEVICE), z, torch.randint(21, (2, 5, 3), device=checks.DEVICE)
    )
    for name in checks.SIGMOID:
        z = torch.randn(7, 5, device=checks.DEVICE).to(dtype)
        loss = getattr(checks.reweigh.losses, name)().to(checks.DEVICE)
        for label in (z > 0, (z > 0).float(), torch.rand_like(z)):
            if label.dtype == torch.bool or loss.rule.soft != "refused":
                checks.value_and_gradient(loss, z, label)
loss = checks.reweigh.losses.selective_risk().to(checks.DEVICE)
checks.value_and_gradient(loss, *checks.draw(300, 10, torch.float32))
torch.cuda.synchronize()
print("every kind of kernel ran")
