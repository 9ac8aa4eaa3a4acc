#pragma once
// Finds the tensors inside the arguments and results of a unit: the supported types, and how to add
// your own.

#include <array>
#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace sherd {

/// The tensors of one call, in visiting order. The visitor may replace them.
using TensorList = std::vector<at::Tensor*>;

/// Finds the tensors inside a `T`. The engine visits the arguments and results of a unit, to cast
/// tensors and to attach the unit's backward to them. An argument of an unsupported type passes
/// unchanged; a result of an unsupported class type is an error.
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

}  // namespace sherd
