// SPDX-License-Identifier: MIT
/// @file
/// Variables: named arrays that are trained, and the typed handles by which a program reaches them.
#pragma once

#include <lockstep/gradients/layout.hpp>
#include <lockstep/tensor/eigen.hpp>
#include <lockstep/tensor/span.hpp>
#include <lockstep/tensor/traits.hpp>
#include <lockstep/transport/memory.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// A typed reference to one variable of one `Variables` object: knows its tensor type, shape and place.
template <class Tensor, class T>
struct Handle {
  std::uint32_t id = 0;                             ///< number of the variable in its set
  Index offset = 0;                                 ///< its first element in the flat layout, in elements
  typename TensorTraits<Tensor, T>::Shape shape{};  ///< its shape, as the tensor type has it
  const void* owner = nullptr;                      ///< identity of the set, to refuse handles of another one
};

namespace detail {
template <class T>
concept VariableScalar = std::same_as<T, float> || std::same_as<T, double>;
template <class G, class T>
concept GradientScalar =
    std::same_as<G, T> || std::same_as<G, Eigen::half> || std::same_as<G, Eigen::bfloat16>;
}  // namespace detail

/// The variables of a model in one flat, 64-byte aligned array.
/// @tparam T scalar of variables and optimizer slots: float or double.
/// @tparam G scalar of gradients: `T`, `Eigen::half` or `Eigen::bfloat16`; sums are formed in `T`.
/// @par Thread safety `add` and binding by one thread; reading follows the rules of the trainer it is bound
/// to.
template <detail::VariableScalar T = float, detail::GradientScalar<T> G = T>
class Variables {
 public:
  /// Scalar of variables and slots.
  using Scalar = T;
  /// Scalar of gradients.
  using GradientScalar = G;

  Variables() = default;
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

  /// Adds a variable with its initial value, evaluated once.
  /// @param initial an Eigen expression, `std::span`, `std::vector`, `NdSpan`, or (opt-in header) an xtensor
  /// expression.
  /// @throws InvalidArgument if the name is empty or taken, or there are no elements; UsageError once bound
  /// to a trainer.
  template <TensorExpression<T> E>
  Handle<tensor_of_t<E>, T> add(std::string_view name, const E& initial) {
    using Traits = TensorTraits<tensor_of_t<E>, T>;
    if (bound_)
      detail::throw_error<UsageError>("variables: cannot add '", name,
                                      "' while a trainer is bound to the set");
    const auto shape = Traits::shape_of(initial);
    const VariableInfo& info =
        layout_.add(std::string(name), Traits::extents(shape), !Traits::contiguous_rows);
    reserve(layout_.size());
    Traits::assign(data_ + info.offset, shape, initial);
    return {info.id, info.offset, shape, this};
  }

  /// The variable itself. @throws UnknownVariable for a handle of another set.
  template <class M>
  typename TensorTraits<M, T>::ConstView value(const Handle<M, T>& handle) const {
    check(handle);
    return TensorTraits<M, T>::view(static_cast<const T*>(data_) + handle.offset, handle.shape);
  }
  /// Overwrites a variable between trainings. @throws UsageError while a trainer is bound; ShapeMismatch.
  template <class M, class E>
  void assign(const Handle<M, T>& handle, const E& value) {
    check(handle);
    if (bound_) throw UsageError("variables: cannot assign while a trainer is bound to the set");
    detail::expect_shape(handle.shape, TensorTraits<M, T>::shape_of(value), layout_[handle.id].name, "value");
    TensorTraits<M, T>::assign(data_ + handle.offset, handle.shape, value);
  }

  /// Name, place and shape of each variable, in the order of `add`.
  std::span<const VariableInfo> infos() const { return layout_.infos(); }
  /// Where they lie.
  const Layout& layout() const { return layout_; }
  /// All values in layout order, padding included.
  std::span<const T> flat() const { return {data_, static_cast<std::size_t>(layout_.size())}; }

  /// @throws UnknownVariable if the handle was made by another `Variables` object.
  template <class M>
  void check(const Handle<M, T>& handle) const {
    if (handle.owner != this)
      throw UnknownVariable(handle.owner ? detail::text("variables: the handle (variable ", handle.id,
                                                        ") belongs to another set")
                                         : std::string("variables: the handle was never returned by add()"));
  }

  /// Used by trainers: takes the set. @throws UsageError if another trainer has it, InvalidArgument if it is
  /// empty.
  void bind() {
    if (bound_) throw UsageError("variables: the set is already bound to a trainer");
    if (layout_.count() == 0)
      throw InvalidArgument("variables: a trainer needs at least one variable, got none");
    bound_ = true;
  }
  /// Used by trainers: gives the set back.
  void release() { bound_ = false; }
  /// Used by trainers: the values, to be changed by updates only.
  T* data() { return data_; }
  /// Used by trainers whose variables lie elsewhere: shows those until `take_back`.
  void show(T* elsewhere) { data_ = elsewhere; }
  /// Takes the values over and shows its own memory again.
  void take_back() {
    T* const own = reinterpret_cast<T*>(memory_->bytes().data());
    if (data_ != own) std::copy(data_, data_ + layout_.size(), own);
    data_ = own;
  }

 private:
  void reserve(Index elements) {
    if (elements <= capacity_) return;
    const Index capacity = std::max(elements, 2 * capacity_);
    auto memory = std::make_unique<ZeroedMemory>(static_cast<std::size_t>(capacity) * sizeof(T));
    T* data = reinterpret_cast<T*>(memory->bytes().data());
    if (data_) std::copy(data_, data_ + capacity_, data);
    memory_ = std::move(memory);
    data_ = data;
    capacity_ = capacity;
  }

  Layout layout_{sizeof(T)};
  std::unique_ptr<ZeroedMemory> memory_;
  T* data_ = nullptr;
  Index capacity_ = 0;
  bool bound_ = false;
};

/// Holds a `Variables` object bound for the life of a trainer.
template <class T, class G>
class Binding {
 public:
  /// Binds the set. @throws UsageError, InvalidArgument as `Variables::bind`.
  explicit Binding(Variables<T, G>& variables) : variables_(&variables) { variables.bind(); }
  ~Binding() {
    if (variables_) variables_->release();
  }
  /// Takes over; the other one binds nothing any more.
  Binding(Binding&& other) noexcept : variables_(std::exchange(other.variables_, nullptr)) {}
  Binding& operator=(Binding&&) = delete;
  /// The set.
  Variables<T, G>& operator*() const { return *variables_; }
  /// The set.
  Variables<T, G>* operator->() const { return variables_; }

 private:
  Variables<T, G>* variables_;
};

LOCKSTEP_NAMESPACE_END
