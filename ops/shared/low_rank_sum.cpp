#include "ops/shared/low_rank_sum.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "ops/shared/dropped.h"
#include "ops/shared/gradient.h"
#include "ops/shared/products.h"

namespace sherd::ops {
namespace {

using Matrices = std::vector<at::Tensor>;

at::Tensor stacked(at::TensorList matrices) {
  return matrices.size() == 1 ? matrices.front() : at::cat(matrices);
}

template <class Of>
Matrices matrices_of(const std::vector<LowRank>& updates, const Of& of) {
  Matrices matrices;
  for (const LowRank& update : updates) {
    if (update) {
      matrices.push_back(of(update));
    }
  }
  return matrices;
}

}  // namespace

LowRankSum::LowRankSum(const std::vector<LowRank>& updates) {
  for (size_t i = 0; i < updates.size(); ++i) {
    if (const LowRank& update = updates[i]) {
      const int64_t rank = update.A.size(0);
      terms_.push_back({i, rank_, rank, update.scale, update.dropout});
      rank_ += rank;
      drops_ = drops_ || update.dropout.drops();
    }
  }
}

Matrices LowRankSum::as_of(const std::vector<LowRank>& updates) {
  return matrices_of(updates, [](const LowRank& update) { return update.A; });
}

Matrices LowRankSum::bs_of(const std::vector<LowRank>& updates) {
  return matrices_of(updates, [](const LowRank& update) { return update.B; });
}

at::Tensor LowRankSum::columns(const at::Tensor& hidden, const Term& term) {
  return hidden.narrow(1, term.begin, term.rank);
}

at::Tensor LowRankSum::empty_hidden(int64_t rows, const at::Tensor& like) const {
  return at::empty({rows, rank_}, like.options());
}

void LowRankSum::scale(const at::Tensor& hidden) const {
  const bool is_same = std::all_of(terms_.begin(), terms_.end(), [&](const Term& term) {
    return term.scale == terms_.front().scale;
  });
  if (is_same) {
    if (terms_.front().scale != 1) {
      hidden.mul_(terms_.front().scale);
    }
    return;
  }
  for (const Term& term : terms_) {
    columns(hidden, term).mul_(term.scale);
  }
}

at::Tensor LowRankSum::add(const Backend& backend, Matrices& outputs, const at::Tensor& input,
                           at::TensorList as, at::TensorList bs) const {
  at::Tensor hidden = empty_hidden(input.size(0), input);
  if (!drops_) {
    backend.mm(hidden, input, stacked(as).t());
  }
  for (size_t i = 0; drops_ && i < terms_.size(); ++i) {
    at::Tensor part = columns(hidden, terms_[i]);
    backend.mm(part, dropped(backend, input, terms_[i].dropout), as[i].t());
  }
  scale(hidden);
  for (size_t i = 0; i < terms_.size(); ++i) {
    backend.add_mm(outputs[terms_[i].output], columns(hidden, terms_[i]), bs[i].t());
  }
  return hidden;
}

at::Tensor LowRankSum::hidden_gradient(const Backend& backend, const Matrices& grad_outputs,
                                       at::TensorList bs) const {
  at::Tensor hidden = empty_hidden(grad_outputs.front().size(0), grad_outputs.front());
  for (size_t i = 0; i < terms_.size(); ++i) {
    at::Tensor part = columns(hidden, terms_[i]);
    backend.mm(part, grad_outputs[terms_[i].output], bs[i]);
  }
  scale(hidden);
  return hidden;
}

void LowRankSum::add_input_gradient(const Backend& backend, at::Tensor& grad_input,
                                    const at::Tensor& grad_hidden, at::TensorList as) const {
  if (!drops_) {
    backend.add_mm(grad_input, grad_hidden, stacked(as));
    return;
  }
  for (size_t i = 0; i < terms_.size(); ++i) {
    const at::Tensor of_dropped = product_of(backend, columns(grad_hidden, terms_[i]), as[i]);
    grad_input.add_(dropped(backend, of_dropped, terms_[i].dropout));
  }
}

Matrices LowRankSum::deliver_as(const Backend& backend, const at::Tensor& grad_hidden,
                                const at::Tensor& input, at::TensorList as) const {
  Matrices delivered(terms_.size());
  if (!any_requires_grad(as)) {
    return delivered;
  }
  const bool is_one = !drops_ && terms_.size() > 1;
  const at::Tensor all = is_one ? product_of(backend, grad_hidden.t(), input) : at::Tensor();
  for (size_t i = 0; i < terms_.size(); ++i) {
    const Term& term = terms_[i];
    if (!as[i].requires_grad()) {
      continue;
    }
    delivered[i] = deliver_gradient(as[i], [&](at::Tensor& out) {
      if (is_one) {
        out.copy_(all.narrow(0, term.begin, term.rank));
      } else {
        backend.mm(out, columns(grad_hidden, term).t(), dropped(backend, input, term.dropout));
      }
    });
  }
  return delivered;
}

Matrices LowRankSum::deliver_bs(const Backend& backend, const Matrices& grad_outputs,
                                const at::Tensor& hidden, at::TensorList bs) const {
  Matrices delivered(terms_.size());
  for (size_t i = 0; i < terms_.size(); ++i) {
    const Term& term = terms_[i];
    if (bs[i].requires_grad()) {
      delivered[i] = deliver_gradient(bs[i], [&](at::Tensor& out) {
        backend.mm(out, grad_outputs[term.output].t(), columns(hidden, term));
      });
    }
  }
  return delivered;
}

}  // namespace sherd::ops
