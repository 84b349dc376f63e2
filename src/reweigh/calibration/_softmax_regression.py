"""Softmax regression on logits: the cost that vector, matrix, structured and Dirichlet scaling share.

The mean cross-entropy of softmax(offset + D x) plus a quadratic penalty on D, a full matrix or a diagonal one with a
bias: what is fitted is the departure from a starting point, the offset. Everything is summed block by block in
float64; masked classes are left out row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from ._newton import Minimum, minimize
from ._rows import Rows

Tensor = torch.Tensor
MINUS_INFINITY = float("-inf")
BLOCK = 1 << 18
# up to so many numbers the features of all rows are kept, else computed anew for every pass
KEPT = 1 << 23


@dataclass(frozen=True)
class Full:
    """D x + d with a full matrix; the flat vector holds the rows [D_k, d_k]."""

    classes: int
    width: int  # of x

    @property
    def size(self) -> int:
        return self.classes * (self.width + 1)

    def parts(self, point: Tensor) -> tuple[Tensor, Tensor]:
        table = point.reshape(self.classes, self.width + 1)
        return table[:, :-1], table[:, -1]

    def flat(self, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.cat([weight, bias.unsqueeze(1)], dim=1).reshape(-1)

    def move(self, point: Tensor, x: Tensor) -> Tensor:
        """(b, K) what is added to the offset of features (b, width)."""
        weight, bias = self.parts(point)
        return torch.addmm(bias, x, weight.T)

    def pull(self, x: Tensor, residual: Tensor) -> Tensor:
        """The transpose of `move`: what residuals (b, K) mean for the parameters."""
        return self.flat(residual.T @ x, residual.sum(0))

    def by_class(self, point: Tensor) -> Tensor:
        """(K, parameters of a class)."""
        return point.reshape(self.classes, self.width + 1)

    def from_class(self, table: Tensor) -> Tensor:
        return table.reshape(-1)

    def diagonal_blocks(self, x: Tensor, p: Tensor, weight: Tensor) -> Tensor:
        """(K, F, F) blocks of the Hessian of one class each."""
        features = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
        spread = (p - p * p) * weight.unsqueeze(1)
        return torch.stack([(features * spread[:, k : k + 1]).T @ features for k in range(self.classes)])

    def hessian_block(self, x: Tensor, p: Tensor, weight: Tensor) -> Tensor:
        """Sum over rows of w (diag(p) - p p') kron [x, 1][x, 1]'."""
        features = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
        joint = (p.unsqueeze(2) * features.unsqueeze(1)).reshape(len(p), -1)
        out = -(joint * weight.unsqueeze(1)).T @ joint
        width = self.width + 1
        for k in range(self.classes):
            own = slice(k * width, (k + 1) * width)
            out[own, own] += (features * (weight * p[:, k]).unsqueeze(1)).T @ features
        return out


@dataclass(frozen=True)
class Diagonal:
    """d_k x_k + c_k; the flat vector is [d, c]."""

    classes: int

    @property
    def size(self) -> int:
        return 2 * self.classes

    def parts(self, point: Tensor) -> tuple[Tensor, Tensor]:
        return point[: self.classes], point[self.classes :]

    def flat(self, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.cat([weight, bias])

    def move(self, point: Tensor, x: Tensor) -> Tensor:
        weight, bias = self.parts(point)
        return x * weight + bias

    def pull(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.flat((residual * x).sum(0), residual.sum(0))

    def by_class(self, point: Tensor) -> Tensor:
        return point.reshape(2, self.classes).T

    def from_class(self, table: Tensor) -> Tensor:
        return table.T.reshape(-1)

    def diagonal_blocks(self, x: Tensor, p: Tensor, weight: Tensor) -> Tensor:
        spread = (p - p * p) * weight.unsqueeze(1)
        square, mixed, plain = (spread * x * x).sum(0), (spread * x).sum(0), spread.sum(0)
        return torch.stack([torch.stack([square, mixed], 1), torch.stack([mixed, plain], 1)], 1)

    def hessian_block(self, x: Tensor, p: Tensor, weight: Tensor) -> Tensor:
        joint = torch.cat([p * x, p], dim=1)
        out = -(joint * weight.unsqueeze(1)).T @ joint
        mass = p * weight.unsqueeze(1)
        k = torch.arange(self.classes)
        bias = k + self.classes
        mixed = (mass * x).sum(0)
        out[k, k] += (mass * x * x).sum(0)
        out[bias, bias] += mass.sum(0)
        out[k, bias] += mixed
        out[bias, k] += mixed
        return out


class Block(NamedTuple):
    """A block of rows, ready for use."""

    rows: slice
    x: Tensor  # (b, width) features, 0 where a class is masked
    offset: Tensor  # (b, K) logits to start from, -inf where masked
    weight: Tensor  # (b,)


@dataclass(frozen=True)
class SoftmaxRegression:
    """Mean cross-entropy of softmax(offset + D x) plus the sum of penalty D^2."""

    rows: Rows
    form: Full | Diagonal
    features: Callable[[Tensor], tuple[Tensor, Tensor]]  # float64 logits of a block -> (x, offset)
    penalty: Tensor | None = None  # (p,)
    kept: tuple[Block, ...] = field(default=(), repr=False)

    def ready(self) -> SoftmaxRegression:
        """The same with the features of all rows computed once, where they are few enough."""
        if self.rows.count * self.rows.classes > KEPT:
            return self
        return replace(self, kept=tuple(self._blocks(BLOCK // self.rows.classes)))

    def _blocks(self, step: int) -> Iterator[Block]:
        if self.kept:
            yield from self.kept
            return
        for start in range(0, self.rows.count, max(1, step)):
            block = slice(start, min(start + max(1, step), self.rows.count))
            z = self.rows.logits[block].double()  # type: ignore[index]
            x, offset = self.features(z)
            weight = torch.ones(len(z)).to(z) if self.rows.weight is None else self.rows.weight[block]
            yield Block(block, x, offset, weight)

    def _log_p(self, point: Tensor, block: Block) -> Tensor:
        return torch.log_softmax(self.form.move(point, block.x).add_(block.offset), dim=1)

    def evaluate(self, point: Tensor) -> tuple[float, Tensor]:
        total = 0.0
        gradient = torch.zeros_like(point)
        for block in self._blocks(BLOCK // self.rows.classes):
            log_p = self._log_p(point, block)
            cost, residual = self._residual(log_p, block.rows)
            total += float((cost * block.weight).sum())
            gradient += self.form.pull(block.x, residual * block.weight.unsqueeze(1))
        mass = self.rows.total
        if self.penalty is None:
            return total / mass, gradient / mass
        pull = self.penalty * point
        return total / mass + float(pull @ point), gradient / mass + 2 * pull

    def endless(self, point: Tensor, cost: float) -> bool:
        """Without a penalty, once every row is right and the mean cost is below 1e-3."""
        if self.penalty is not None or cost > 1e-3 or self.rows.target is None:
            return False
        for block in self._blocks(BLOCK // self.rows.classes):
            predicted = self._log_p(point, block).argmax(1)
            if not bool((predicted == self.rows.target[block.rows]).all()):
                return False
        return True

    def _residual(self, log_p: Tensor, block: slice) -> tuple[Tensor, Tensor]:
        """(b,) cross-entropy and (b, K) p minus the truth."""
        residual = log_p.exp()
        if self.rows.target is not None:
            true = self.rows.target[block].unsqueeze(1)
            residual.scatter_add_(1, true, torch.full_like(true, -1.0, dtype=torch.float64))
            return -log_p.gather(1, true).squeeze(1), residual
        share = self.rows.share[block]  # type: ignore[index]
        return -torch.where(share > 0, share * log_p, 0.0).sum(1), residual.sub_(share)

    def hessian(self, point: Tensor) -> Tensor:
        out = torch.zeros(len(point), len(point), dtype=torch.float64)
        for block in self._blocks(BLOCK // self.form.size):
            # kept blocks may be longer than the products below want
            for part in range(0, len(block.x), max(1, 8 * BLOCK // self.form.size)):
                own = slice(part, part + max(1, 8 * BLOCK // self.form.size))
                few = block._replace(x=block.x[own], offset=block.offset[own])
                out += self.form.hessian_block(few.x, self._log_p(point, few).exp(), block.weight[own])
        out /= self.rows.total
        return out if self.penalty is None else out + torch.diag(2 * self.penalty)

    def curvature(self, point: Tensor) -> Callable[[Tensor], Tensor]:
        known = [self._log_p(point, block).exp() for block in self.kept]

        def product(vector: Tensor) -> Tensor:
            out = torch.zeros_like(point)
            for number, block in enumerate(self._blocks(BLOCK // self.rows.classes)):
                p = known[number] if known else self._log_p(point, block).exp()
                moved = self.form.move(vector, block.x)
                moved = p * (moved - (p * moved).sum(1, keepdim=True))
                out += self.form.pull(block.x, moved * block.weight.unsqueeze(1))
            out /= self.rows.total
            return out if self.penalty is None else out + 2 * self.penalty * vector

        return product

    def preconditioner(self, point: Tensor) -> Callable[[Tensor], Tensor]:
        """The inverse of the Hessian's diagonal blocks, one a class."""
        blocks = self.form.diagonal_blocks
        total = torch.zeros(())
        for block in self._blocks(BLOCK // self.rows.classes):
            total = total + blocks(block.x, self._log_p(point, block).exp(), block.weight)
        total = total / self.rows.total
        if self.penalty is not None:
            total = total + torch.diag_embed(2 * self.form.by_class(self.penalty))
        size = total.diagonal(dim1=1, dim2=2).amax(1).clamp(min=1e-300)
        ridge = torch.diag_embed((1e-6 * size + 1e-12).unsqueeze(1).expand(-1, total.shape[1]))
        factors = torch.linalg.cholesky(total + ridge)

        def near_inverse(vector: Tensor) -> Tensor:
            table = self.form.by_class(vector).unsqueeze(2)
            return self.form.from_class(torch.cholesky_solve(table, factors).squeeze(2))

        return near_inverse

    def solve(self, start: Tensor | None = None, *, enough: float = 1e-9, most_steps: int = 200) -> Minimum:
        """The minimum, from D = 0 unless said otherwise."""
        first = torch.zeros(self.form.size, dtype=torch.float64) if start is None else start
        return minimize(self.ready(), first, enough=enough, most_steps=most_steps)


def unmasked(z: Tensor) -> tuple[Tensor, Tensor]:
    """(logits with 0 in place of masks, masks as 0 and -inf)."""
    masked = z == MINUS_INFINITY
    return torch.where(masked, 0.0, z), torch.where(masked, MINUS_INFINITY, 0.0).to(z)


def on_processor(rows: Rows) -> Rows:
    """The rows on the CPU, where the small dense systems are solved."""
    if rows.logits is None or rows.logits.device.type == "cpu":
        return rows
    names = ("logits", "highest", "target", "share", "weight")
    return replace(rows, **{name: None if getattr(rows, name) is None else getattr(rows, name).cpu() for name in names})
