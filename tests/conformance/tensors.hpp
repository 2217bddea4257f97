// SPDX-License-Identifier: MIT
/// @file
/// Tensors and row-sparse gradients of conformance.json as the library's types, and back.
#pragma once

#include "driver.hpp"
#include <lockstep/accumulators/tensor.hpp>

#include <cstddef>
#include <optional>
#include <vector>

namespace conformance {

template <class T>
lockstep::Tensor<T> tensor_from(const Json& json) {
  lockstep::Tensor<T> result;
  for (const Json& element : json.at("data"))
    result.elements.push_back(static_cast<T>(element.get<double>()));
  result.shape = json.at("shape").get<lockstep::Shape>();
  return result;
}

template <class T>
Json json_of(const lockstep::Tensor<T>& tensor) {
  Json elements = Json::array();
  for (const T element : tensor.elements) elements.push_back(static_cast<double>(element));
  return {{"shape", tensor.shape}, {"data", elements}};
}

inline std::optional<lockstep::Shape> shape_from(const Json& json) {
  if (json.is_null()) return std::nullopt;
  return json.get<lockstep::Shape>();
}

/// A row-sparse gradient together with the arrays that it is a view of.
template <class T>
struct SparseFixture {
  explicit SparseFixture(const Json& json)
      : indices(json.at("indices").get<std::vector<lockstep::Index>>()),
        values(tensor_from<T>(json.at("values"))),
        dense_shape(shape_from(json.at("dense_shape"))),
        indices_shape(json.contains("indices_shape")
                          ? json.at("indices_shape").get<lockstep::Shape>()
                          : lockstep::Shape{static_cast<lockstep::Index>(indices.size())}) {}

  lockstep::SparseGradient<T> gradient() const {
    return {.indices = {indices, indices_shape}, .values = values, .dense_shape = dense_shape};
  }

  std::vector<lockstep::Index> indices;
  lockstep::Tensor<T> values;
  std::optional<lockstep::Shape> dense_shape;
  lockstep::Shape indices_shape;
};

template <class T>
Json json_of(const lockstep::SparseTensor<T>& tensor) {
  return {
      {"indices", tensor.indices}, {"values", json_of(tensor.values)}, {"dense_shape", tensor.dense_shape}};
}

}  // namespace conformance
