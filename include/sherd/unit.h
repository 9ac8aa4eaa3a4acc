#pragma once
// `Unit<Block>`: the holder that declares a communication unit. C++ modules have no forward hooks,
// so a model's types state where parameters are gathered. Until fully_shard() activates it, a unit
// is a plain call. The first part finds the tensors among the arguments and results of a call.

#include <array>
#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/narrow/module.h"

namespace sherd {

/// The tensors of one call, in visiting order. The visitor may replace them.
using TensorList = std::vector<at::Tensor*>;

/// Finds the tensors inside a `T`. The engine visits the arguments and results of a unit, to cast
/// tensors and to attach the unit's backward to them. An argument of an unsupported type passes
/// unchanged; a result of an unsupported class type is an error. If a unit writes to an
/// argument, the caller gets back the tensors that it wrote. Other members come back only if the
/// number of tensors changed: return them instead.
///
/// Supported are tensors; optionals, vectors, arrays, pairs, tuples and maps of supported types;
/// and structs that list their tensors:
///
///     struct Output {
///       at::Tensor hidden;
///       std::vector<at::Tensor> cache;
///       auto tensors() { return std::tie(hidden, cache); }
///     };
///
/// For a type that you cannot change, specialise TensorWalk with `collect(T&, TensorList&)` and
/// derive from `std::true_type`. PyTorch: `torch.utils._pytree.register_pytree_node`.
template <class T>
struct TensorWalk : std::false_type {};

/// True if tensors inside a `T` are found.
template <class T>
concept CarriesTensors = TensorWalk<T>::value;

/// Appends the tensors inside `value` to `out`; none if `T` is not supported.
template <class T>
void collect_tensors(T& value, TensorList& out) {
  if constexpr (CarriesTensors<T>) {
    TensorWalk<T>::collect(value, out);
  }
}

/// @cond what the standard types have of TensorWalk
template <>
struct TensorWalk<at::Tensor> : std::true_type {
  static void collect(at::Tensor& value, TensorList& out) { out.push_back(&value); }
};

template <class T>
struct TensorWalk<std::optional<T>> : TensorWalk<T> {
  static void collect(std::optional<T>& value, TensorList& out) {
    if (value) {
      collect_tensors(*value, out);
    }
  }
};

template <class T>
struct TensorWalk<std::vector<T>> : TensorWalk<T> {
  static void collect(std::vector<T>& values, TensorList& out) {
    for (T& value : values) {
      collect_tensors(value, out);
    }
  }
};

/// `std::vector<bool>` has no elements that can be referenced.
template <>
struct TensorWalk<std::vector<bool>> : std::false_type {};

template <class T, size_t N>
struct TensorWalk<std::array<T, N>> : TensorWalk<T> {
  static void collect(std::array<T, N>& values, TensorList& out) {
    for (T& value : values) {
      collect_tensors(value, out);
    }
  }
};

template <class... T>
struct TensorWalk<std::tuple<T...>> : std::disjunction<TensorWalk<std::remove_cvref_t<T>>...> {
  static void collect(std::tuple<T...>& values, TensorList& out) {
    std::apply([&](auto&... value) { (collect_tensors(value, out), ...); }, values);
  }
};

template <class A, class B>
struct TensorWalk<std::pair<A, B>> : std::disjunction<TensorWalk<A>, TensorWalk<B>> {
  static void collect(std::pair<A, B>& value, TensorList& out) {
    collect_tensors(value.first, out);
    collect_tensors(value.second, out);
  }
};

template <class Key, class T, class Compare>
struct TensorWalk<std::map<Key, T, Compare>> : TensorWalk<T> {
  static void collect(std::map<Key, T, Compare>& values, TensorList& out) {
    for (auto& [key, value] : values) {
      collect_tensors(value, out);
    }
  }
};

/// Visits in the order of the keys, which is the same on all ranks, unlike the order of the
/// buckets.
template <class Key, class T, class Hash, class Equal>
struct TensorWalk<std::unordered_map<Key, T, Hash, Equal>> : TensorWalk<T> {
  static void collect(std::unordered_map<Key, T, Hash, Equal>& values, TensorList& out) {
    std::map<Key, T*> sorted;
    for (auto& [key, value] : values) {
      sorted[key] = &value;
    }
    for (auto& [key, value] : sorted) {
      collect_tensors(*value, out);
    }
  }
};

/// A struct that lists its tensors.
template <class T>
requires requires(T& value) {
  {value.tensors()};
  requires TensorWalk<decltype(value.tensors())>::value;
}
struct TensorWalk<T> : std::true_type {
  static void collect(T& value, TensorList& out) {
    auto named = value.tensors();
    collect_tensors(named, out);
  }
};
/// @endcond

namespace detail {

class Step;
class UnitState;
class UnitUse;

/// A unit of a sharded model, and the step that it takes part in; both null before sharding.
struct ShardedUnit {
  std::shared_ptr<Step> step;  ///< keeps the unit alive
  UnitState* state = nullptr;
};

/// Marks a module as a unit for fully_shard(), and keeps the sharded unit alive.
class UnitAnchor {
 public:
  virtual ~UnitAnchor() = default;
  [[nodiscard]] const ShardedUnit& sharded_unit() const noexcept { return unit_; }
  void set_sharded_unit(ShardedUnit unit) { unit_ = std::move(unit); }

 private:
  ShardedUnit unit_;
};

/// Repeats a call with the given values of its tensor arguments, and returns the tensors of its
/// result.
using Recompute = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// One call of a unit. The constructor gathers the parameters; leave() or checkpoint() frees them
/// again as the strategy requires. If an exception destroys it earlier, it aborts the whole step,
/// so that the next step starts clean.
class ForwardScope {
 public:
  /// Collective. Throws Error(Usage) if the unit must not be called now.
  explicit ForwardScope(const ShardedUnit& unit);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
  /// Casts the tensors that the unit was called with.
  void cast_inputs(const TensorList& inputs);
  /// Attaches the end of the unit's backward to its inputs.
  void enter(const TensorList& inputs);
  /// Attaches the beginning of the unit's backward to its results.
  void leave(const TensorList& outputs);
  /// Replaces enter() and leave(): calls `body` and keeps only `inputs` for backward, which calls
  /// it again. If nothing in the unit is trained and no input requires a gradient, it calls `body`
  /// as any other unit does: no backward will come.
  std::vector<at::Tensor> checkpoint(Recompute body, const std::vector<at::Tensor>& inputs);

 private:
  [[nodiscard]] bool is_trained_inside() const;
  ForwardScope(const ShardedUnit& unit, int depth_before);
  void cast_outputs(const TensorList& outputs) const;
  void end(UnitUse* use);

  ShardedUnit unit_;
  int depth_before_;  ///< number of the unit's forwards in progress before
  std::shared_ptr<UnitUse> use_;
  bool left_ = false;
  std::shared_ptr<void> saving_;  ///< set between enter() and leave()
};

/// Returns true if backward recomputes this call.
[[nodiscard]] bool checkpoints_activations(const UnitState& unit);
[[noreturn]] void refuse_to_checkpoint(const UnitState& unit);
[[noreturn]] void refuse_written_argument(const UnitState& unit);
/// Throws Error(Usage), naming unit and remedy, if `unit` is not null.
void refuse_to_convert(const UnitState* unit);
void refuse_to_clone(const UnitState* unit);

// How an argument is stored for the call: a type with tensors as a copy, whose tensors may be
// replaced; any other type by reference.
template <class T>
using HeldArgument = std::conditional_t<CarriesTensors<std::decay_t<T>>, std::decay_t<T>, T&&>;

// Passes an argument to the body. An lvalue stays one, so that a parameter can be a
// `std::vector<at::Tensor>&`.
template <class T>
decltype(auto) pass(HeldArgument<T>& held) {
  if constexpr (CarriesTensors<std::decay_t<T>> && std::is_lvalue_reference_v<T>) {
    return (held);
  } else if constexpr (CarriesTensors<std::decay_t<T>>) {
    return std::move(held);
  } else {
    return static_cast<T&&>(held);
  }
}

template <class Body, class... Args, size_t... I>
decltype(auto) invoke_held(Body&& body, std::tuple<HeldArgument<Args>...>& held,
                           std::index_sequence<I...> /*places*/) {
  return std::invoke(std::forward<Body>(body), pass<Args>(std::get<I>(held))...);
}

template <class Tuple>
TensorList tensors_of(Tuple& values) {
  TensorList tensors;
  std::apply([&](auto&... value) { (collect_tensors(value, tensors), ...); }, values);
  return tensors;
}

// A body may write an lvalue argument: its copy is given back then.
template <class T>
inline constexpr bool kMayBeWritten = std::is_lvalue_reference_v<T>&&
    CarriesTensors<std::decay_t<T>>&& std::is_assignable_v<T, std::decay_t<T>>;

/// Tensors of arguments as the body received them, by argument; none of those that it cannot write.
template <class... Args>
using Received = std::array<std::vector<at::Tensor>, sizeof...(Args)>;

inline size_t place_among(const std::vector<at::Tensor>& tensors, const at::Tensor& tensor) {
  size_t i = 0;
  while (i < tensors.size() && !tensors[i].is_same(tensor)) {
    ++i;
  }
  return i;
}

template <class T, class Value>
std::vector<at::Tensor> received(Value& held) {
  std::vector<at::Tensor> tensors;
  if constexpr (kMayBeWritten<T>) {
    TensorList places;
    collect_tensors(held, places);
    for (const at::Tensor* place : places) {
      tensors.push_back(*place);
    }
  }
  return tensors;
}

// Adds the tensors that the body has put into an argument to `out`: the unit's results.
template <class T, class Value>
void collect_written(Value& held, const std::vector<at::Tensor>& before, TensorList& out) {
  if constexpr (kMayBeWritten<T>) {
    TensorList places;
    collect_tensors(held, places);
    std::erase_if(places, [&](const at::Tensor* place) {
      return !place->defined() || place_among(before, *place) < before.size();
    });
    out.insert(out.end(), places.begin(), places.end());
  }
}

// Gives the caller what the body has written, and nothing else: others may read the argument.
template <class T, class Value>
void give_back(Value& held, const std::vector<at::Tensor>& before, T& argument) {
  if constexpr (kMayBeWritten<T>) {
    TensorList now;
    TensorList own;
    collect_tensors(held, now);
    collect_tensors(argument, own);
    const std::vector<at::Tensor> callers = [&] {
      std::vector<at::Tensor> tensors;
      for (const at::Tensor* place : own) {
        tensors.push_back(*place);
      }
      return tensors;
    }();
    for (size_t i = 0; i < now.size(); ++i) {
      const size_t place = place_among(before, *now[i]);
      const bool is_known = place < callers.size();
      if (is_known) {
        *now[i] = callers[place];  // its own, not a cast of it
      }
      if (now.size() == own.size() && !(is_known && place == i)) {
        *own[i] = *now[i];
      }
    }
    if (now.size() != own.size()) {
      argument = std::move(held);
    }
  }
}

// The same of all arguments.
template <class... Args, size_t... I>
Received<Args...> all_received(std::tuple<HeldArgument<Args>...>& held,
                               std::index_sequence<I...> /*places*/) {
  return {received<Args>(std::get<I>(held))...};
}
template <class... Args, size_t... I>
TensorList all_written(std::tuple<HeldArgument<Args>...>& held, const Received<Args...>& before,
                       std::index_sequence<I...> /*places*/) {
  TensorList tensors;
  (collect_written<Args>(std::get<I>(held), before[I], tensors), ...);
  return tensors;
}
template <class... Args, size_t... I>
void give_all_back(std::tuple<HeldArgument<Args>...>& held, const Received<Args...>& before,
                   std::index_sequence<I...> /*places*/, Args&... args) {
  (give_back<Args>(std::get<I>(held), before[I], args), ...);
}

// A call that can be repeated: it holds copies of its arguments.
template <class Result, class Body, class... Args>
struct RepeatableCall {
  Body body;
  std::tuple<std::decay_t<Args>...> held;
  const UnitState* unit = nullptr;
  std::optional<Result>* first = nullptr;  // destination of the first call's result

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) {
    auto arguments = held;
    const TensorList places = tensors_of(arguments);
    for (size_t i = 0; i < places.size(); ++i) {
      *places[i] = inputs[i];
    }
    Result result =
        std::apply([&](auto&... value) { return std::invoke(body, static_cast<Args&&>(value)...); },
                   arguments);
    refuse_written(arguments, inputs, std::index_sequence_for<Args...>());
    std::vector<at::Tensor> outputs;
    TensorList tensors;
    collect_tensors(result, tensors);
    for (const at::Tensor* tensor : tensors) {
      outputs.push_back(*tensor);
    }
    if (first != nullptr) {
      first->emplace(std::move(result));
    }
    return outputs;
  }

  template <size_t... I>
  void refuse_written(std::tuple<std::decay_t<Args>...>& arguments,
                      const std::vector<at::Tensor>& inputs, std::index_sequence<I...> /*places*/) {
    TensorList written;
    (collect_written<Args>(std::get<I>(arguments), inputs, written), ...);
    if (!written.empty()) {
      refuse_written_argument(*unit);
    }
  }
};

template <class Result, class Body, class... Args>
Result call_checkpointed(const ShardedUnit& unit, Body&& body, Args&&... args) {
  using Call = RepeatableCall<Result, std::decay_t<Body>, Args...>;
  ForwardScope scope(unit);
  std::optional<Result> result;
  auto call = std::make_shared<Call>(
      Call{std::forward<Body>(body), {std::forward<Args>(args)...}, unit.state, &result});
  const TensorList places = tensors_of(call->held);
  scope.cast_inputs(places);
  std::vector<at::Tensor> inputs;
  for (at::Tensor* place : places) {
    inputs.push_back(std::exchange(*place, at::Tensor()));  // autograd keeps them
  }
  const std::vector<at::Tensor> outputs = scope.checkpoint(
      [call](const std::vector<at::Tensor>& values) { return (*call)(values); }, inputs);
  call->first = nullptr;
  TensorList tensors;
  collect_tensors(*result, tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    *tensors[i] = outputs[i];
  }
  return std::move(*result);
}

/// Calls `body(args…)` as one use of `unit`; a plain call before sharding.
template <class Body, class... Args>
auto call_unit(const ShardedUnit& unit, Body&& body, Args&&... args) {
  using Result = std::invoke_result_t<Body, Args...>;
  static_assert(
      !std::is_class_v<std::decay_t<Result>> || CarriesTensors<std::decay_t<Result>>,
      "a unit returns tensors, containers of them, or structs that name theirs "
      "(sherd::TensorWalk): "
      "inside another type they would not be seen, and backward would not gather the unit");
  if (unit.state == nullptr) {
    return static_cast<Result>(std::invoke(std::forward<Body>(body), std::forward<Args>(args)...));
  }
  if (checkpoints_activations(*unit.state)) {
    if constexpr (CarriesTensors<std::decay_t<Result>> &&
                  (std::is_copy_constructible_v<std::decay_t<Args>> && ...)) {
      return static_cast<Result>(call_checkpointed<std::decay_t<Result>>(
          unit, std::forward<Body>(body), std::forward<Args>(args)...));
    } else {
      refuse_to_checkpoint(*unit.state);
    }
  }
  ForwardScope scope(unit);
  std::tuple<HeldArgument<Args>...> held(std::forward<Args>(args)...);
  const TensorList inputs = tensors_of(held);
  scope.cast_inputs(inputs);
  scope.enter(inputs);
  constexpr auto kPlaces = std::index_sequence_for<Args...>();
  const Received<Args...> before = all_received<Args...>(held, kPlaces);
  if constexpr (std::is_void_v<Result>) {
    invoke_held<Body, Args...>(std::forward<Body>(body), held, kPlaces);
    scope.leave(all_written<Args...>(held, before, kPlaces));
    give_all_back<Args...>(held, before, kPlaces, args...);
  } else {
    auto result = invoke_held<Body, Args...>(std::forward<Body>(body), held, kPlaces);
    TensorList outputs = all_written<Args...>(held, before, kPlaces);
    collect_tensors(result, outputs);
    scope.leave(outputs);
    give_all_back<Args...>(held, before, kPlaces, args...);
    return result;
  }
}

/// Redeclares `forward` with the block's own signature, so that `AnyModule` and `Sequential` see
/// that of the unit.
template <class Derived, class Signature>
struct ForwardOf;
template <class Derived, class Result, class Block, class... Args>
struct ForwardOf<Derived, Result (Block::*)(Args...)> {
  Result forward(Args... args) {
    return static_cast<Derived*>(this)->call(std::forward<Args>(args)...);
  }
};

template <class Derived, class Result, class Block, class... Args>
struct ForwardOf<Derived, Result (Block::*)(Args...) const>
    : ForwardOf<Derived, Result (Block::*)(Args...)> {};
// Never noexcept: a gather may throw even if the block cannot.
template <class Derived, class Result, class Block, class... Args>
struct ForwardOf<Derived, Result (Block::*)(Args...) noexcept>
    : ForwardOf<Derived, Result (Block::*)(Args...)> {};
template <class Derived, class Result, class Block, class... Args>
struct ForwardOf<Derived, Result (Block::*)(Args...) const noexcept>
    : ForwardOf<Derived, Result (Block::*)(Args...)> {};

template <class Impl>
concept HasOneForward = requires {
  &Impl::forward;
};
template <class Derived>
struct AnyForward {
  template <class... Args>
  auto forward(Args&&... args) {
    return static_cast<Derived*>(this)->call(std::forward<Args>(args)...);
  }
};
template <class Derived, class Impl>
struct ForwardBase : AnyForward<Derived> {};
template <class Derived, HasOneForward Impl>
struct ForwardBase<Derived, Impl> : ForwardOf<Derived, decltype(&Impl::forward)> {};

}  // namespace detail

/// A block of type `Impl` as a communication unit. `Unit<Block>` creates it; qualified names stay
/// those of the block.
template <class Impl>
class UnitImpl : public Impl,
                 public detail::UnitAnchor,
                 public detail::ForwardBase<UnitImpl<Impl>, Impl> {
 public:
  using Impl::Impl;
  using detail::ForwardBase<UnitImpl<Impl>, Impl>::forward;

  /// Runs the block's `forward` with its parameters gathered. Collective; throws as
  /// Sharded::operator() does.
  template <class... Args>
  auto call(Args&&... args) {
    // Backward repeats a checkpointed call, possibly after all other owners of the module are gone.
    auto body = [this, module = this->weak_from_this().lock()](auto&&... value) {
      return Impl::forward(std::forward<decltype(value)>(value)...);
    };
    return detail::call_unit(sharded_unit(), body, std::forward<Args>(args)...);
  }

  /// Calls `fn(block, args…)` as one use of the unit, for methods other than `forward`. Pass
  /// tensors of the step's graph as `args` instead of capturing them, so that the unit knows when
  /// their gradients are complete. Collective; throws as Sharded::operator() does. PyTorch:
  /// `register_fsdp_forward_method`.
  template <class Fn, class... Args>
  auto run(Fn&& fn, Args&&... args) {
    auto body = [this, module = this->weak_from_this().lock(),
                 fn = std::forward<Fn>(fn)](auto&&... value) {
      return std::invoke(fn, static_cast<Impl&>(*this), std::forward<decltype(value)>(value)...);
    };
    return detail::call_unit(sharded_unit(), body, std::forward<Args>(args)...);
  }

  /// Overrides LibTorch's `to`. Throws Error(Usage) once the unit is sharded, because its
  /// parameters cannot be changed then.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override {
    detail::refuse_to_convert(sharded_unit().state);
    Impl::to(device, dtype, non_blocking);
  }
  /// As above.
  void to(torch::Dtype dtype, bool non_blocking = false) override {
    detail::refuse_to_convert(sharded_unit().state);
    Impl::to(dtype, non_blocking);
  }
  /// As above.
  void to(torch::Device device, bool non_blocking = false) override {
    detail::refuse_to_convert(sharded_unit().state);
    Impl::to(device, non_blocking);
  }
  /// Overrides LibTorch's `clone`. Throws Error(Usage) once the unit is sharded, because its
  /// parameters cannot be copied then.
  [[nodiscard]] std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    detail::refuse_to_clone(sharded_unit().state);
    return Impl::clone(device);
  }
};

/// A module holder that declares its module as a communication unit: one gather and one reduction
/// for all parameters inside it that no inner unit holds.
///
///     std::vector<sherd::Unit<Block>> blocks;
///     blocks.push_back(register_module("block0", sherd::Unit<Block>(width)));
///     x = blocks[0](x);
///
/// Takes the constructor arguments of `Block`. Costs nothing until fully_shard() activates it.
/// After that each call is collective: every rank of the mesh calls the same units in the same
/// order. PyTorch: `fully_shard(block)`.
template <class Block>
class Unit : public torch::nn::ModuleHolder<UnitImpl<typename Block::ContainedType>> {
  using Base = torch::nn::ModuleHolder<UnitImpl<typename Block::ContainedType>>;

 public:
  using Base::Base;
  /// The type of the held module: a block that is also a unit.
  using Impl = UnitImpl<typename Block::ContainedType>;

  /// Runs the block's `forward`, as UnitImpl::call() does.
  template <class... Args>
  auto operator()(Args&&... args) {
    return this->get()->call(std::forward<Args>(args)...);
  }
};

}  // namespace sherd
