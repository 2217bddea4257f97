// SPDX-License-Identifier: MIT
/// @file
/// The gradients of all variables, which a program writes where they stay.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/tensor/traits.hpp>

LOCKSTEP_NAMESPACE_BEGIN

/// The memory of all gradients of a step, as `GradientAccess::gradients` gives it. Each is to be written by
/// its handle. Valid until the next `apply_gradients`.
/// @tparam T scalar of the variables. @tparam G scalar of the gradients.
template <class T, class G>
class DenseGradients {
 public:
  /// Of `variables`, in the order of their layout from `data` on.
  DenseGradients(const Variables<T, G>& variables, G* data) : variables_(&variables), data_(data) {}

  /// The gradient of one variable, without copy. Shape: that of the variable.
  /// @throws UnknownVariable for a handle of another set.
  template <class M>
  typename TensorTraits<M, T>::template GradientView<G> operator[](const Handle<M, T>& handle) const {
    variables_->check(handle);
    return TensorTraits<M, T>::gradient_view(data_ + handle.offset, handle.shape);
  }

 private:
  const Variables<T, G>* variables_;
  G* data_;
};

LOCKSTEP_NAMESPACE_END
