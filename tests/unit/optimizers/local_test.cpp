// SPDX-License-Identifier: MIT
#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include "unit/optimizers/drive.hpp"
#include <lockstep/optimizers/local.hpp>
#include <lockstep/optimizers/optimizers.hpp>

#include <Eigen/Core>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

template <class T>
using Column = Eigen::Matrix<T, Eigen::Dynamic, 1>;
using Table = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
std::vector<T> copy_of(const auto& view) {
  return {view.data(), view.data() + view.size()};
}

template <class T>
Column<T> numbers_of(Index size, std::uint64_t seed) {
  Numbers numbers(seed);
  Column<T> v(size);
  for (Index i = 0; i < size; ++i) v[i] = static_cast<T>(numbers.real());
  return v;
}

/// One variable of each size.
template <class T>
struct Sized {
  Sized() {
    for (const Index size : k_sizes)
      handles.push_back(variables.add("v" + std::to_string(size), numbers_of<T>(size, 1)));
  }
  Variables<T> variables;
  std::vector<Handle<Column<T>, T>> handles;
};

template <class T>
bool padding_is_zero(const Variables<T>& variables) {
  const Layout& layout = variables.layout();
  for (const VariableInfo& info : layout.infos())
    for (Index i = info.offset + info.size; i < layout.end_of(info.id); ++i)
      if (variables.flat()[static_cast<std::size_t>(i)] != 0) return false;
  return true;
}

/// Trains dense variables of every size and compares each element with the rule applied to it alone.
template <class T, class R>
void check_dense(const R& rule) {
  Sized<T> model;
  std::vector<Model<T>> expected;
  for (const auto& handle : model.handles)
    expected.push_back(model_of(rule, copy_of<T>(model.variables.value(handle))));
  Local<R, T> local(rule, model.variables);
  for (int t = 0; t < 4; ++t) {
    for (std::size_t i = 0; i < model.handles.size(); ++i) {
      const Column<T> g =
          numbers_of<T>(model.variables.value(model.handles[i]).size(), static_cast<std::uint64_t>(10 + t));
      local.set_gradient(model.handles[i], g);
      update<Pack<T>>(rule, {.step = t, .schedule = t}, expected[i], copy_of<T>(g));
    }
    const StepResult result = local.apply_gradients();
    CHECK(result.status == Status::accepted);
    CHECK(result.global_step == t + 1);
    CHECK(result.contributions == 1);
    CHECK(result.computed_at == t);
    CHECK(result.culprit == -1);
  }
  for (std::size_t i = 0; i < model.handles.size(); ++i) {
    INFO("size " << k_sizes[i]);
    CHECK(same_bits(copy_of<T>(local.value(model.handles[i])), expected[i].w));
    for (std::size_t k = 0; k < slot_count_v<R>; ++k)
      CHECK(same_bits(copy_of<T>(local.slot(R::slots[k].name, model.handles[i])), expected[i].slots[k]));
  }
  CHECK(padding_is_zero(model.variables));
}

}  // namespace

TEMPLATE_TEST_CASE("local: every rule gives the bits of the rule on each element alone",
                   "[optimizers][local]", float, double) {
  using T = TestType;
  check_dense<T>(Sgd{.learning_rate = 0.1});
  check_dense<T>(Momentum{.learning_rate = 0.1});
  check_dense<T>(Momentum{.learning_rate = 0.1, .nesterov = true});
  check_dense<T>(Adagrad{});
  check_dense<T>(RmsProp{});
  check_dense<T>(Adam{});
  check_dense<T>(AdamW{});
  check_dense<T>(MovingAverage{Adam{}, 0.9});
  check_dense<T>(MovingAverage{
      Sgd{.learning_rate = [](std::int64_t step) { return 1.0 / static_cast<double>(step + 1); }}, 0.5,
      true});
}

TEMPLATE_TEST_CASE("local: a rule for whole variables sees each of them, padded with zeros",
                   "[optimizers][local]", float, double) {
  using T = TestType;
  Sized<T> model;
  const Lamb rule;
  Local<Lamb, T> local(rule, model.variables);
  const Layout& layout = model.variables.layout();
  const auto size = static_cast<std::size_t>(layout.size());
  ZeroedMemory memory(4 * size * sizeof(T));
  T* w = reinterpret_cast<T*>(memory.bytes().data());
  T *g = w + size, *m = g + size, *v = m + size;
  std::copy(model.variables.flat().begin(), model.variables.flat().end(), w);
  for (int t = 0; t < 3; ++t) {
    for (std::size_t i = 0; i < model.handles.size(); ++i) {
      const auto gradient = numbers_of<T>(k_sizes[i], static_cast<std::uint64_t>(t) + 3);
      local.set_gradient(model.handles[i], gradient);
      const Index at = model.handles[i].offset, padded = layout.end_of(model.handles[i].id) - at;
      std::copy(gradient.data(), gradient.data() + gradient.size(), g + at);
      rule.update_variable(rule.prepare({.step = t}), Flat<T>(w + at, padded), ConstFlat<T>(g + at, padded),
                           Flat<T>(m + at, padded), Flat<T>(v + at, padded));
    }
    local.apply_gradients();
  }
  CHECK(std::memcmp(w, model.variables.flat().data(), size * sizeof(T)) == 0);
  for (const auto& handle : model.handles)
    CHECK(std::memcmp(local.slot("m", handle).data(), m + handle.offset,
                      static_cast<std::size_t>(handle.shape[0]) * sizeof(T)) == 0);
}

TEST_CASE("local: a variable without gradient keeps its value and its slots", "[optimizers][local]") {
  const auto check = [](const auto& rule) {
    Variables<float> variables;
    const auto a = variables.add("a", numbers_of<float>(20, 1));
    const auto b = variables.add("b", numbers_of<float>(20, 2));
    Local local{rule, variables};
    local.set_gradient(a, numbers_of<float>(20, 3));
    local.set_gradient(b, numbers_of<float>(20, 4));
    local.apply_gradients();
    const auto kept = copy_of<float>(local.value(b)), kept_m = copy_of<float>(local.slot("m", b));
    const auto before = copy_of<float>(local.value(a));
    local.set_gradient(a, numbers_of<float>(20, 5));
    local.apply_gradients();
    CHECK(same_bits(copy_of<float>(local.value(b)), kept));
    CHECK(same_bits(copy_of<float>(local.slot("m", b)), kept_m));
    CHECK_FALSE(same_bits(copy_of<float>(local.value(a)), before));
  };
  check(Adam{});
  check(AdamW{});
  check(Lamb{});
  check(MovingAverage{Adam{}, 0.5});
  check(MovingAverage{Lamb{}, 0.5});
}

TEST_CASE("local: a moving average follows variables without a gradient too", "[optimizers][local]") {
  const auto check = [](const auto& rule) {
    Variables<float> variables;
    const auto a = variables.add("a", Column<float>::Ones(18));
    const auto b = variables.add("b", Column<float>::Ones(18));
    Local local{MovingAverage{rule, 0.5}, variables};
    local.set_gradient(a, Column<float>::Ones(18));
    local.set_gradient(b, Column<float>::Ones(18));
    local.apply_gradients();
    const float w = local.value(b)[17];
    float average = local.slot("average", b)[17];
    CHECK(average != w);
    for (int t = 0; t < 3; ++t) {
      local.set_gradient(a, Column<float>::Ones(18));
      local.apply_gradients();
      average -= 0.5F * (average - w);
      CHECK(local.value(b)[17] == w);
      CHECK(local.slot("average", b)[17] == average);
      CHECK(local.slot("average", b)[0] == average);
    }
  };
  check(Sgd{.learning_rate = 0.5});
  check(Lamb{.learning_rate = 0.5});
}

TEST_CASE("local: row-sparse gradients touch the listed rows, or all if the rule says so",
          "[optimizers][local]") {
  constexpr Index rows = 4100, width = 3;
  const std::set<Index> listed{0, 63, 64, 4095, 4096, 4099};
  const auto check = [&](const auto& rule, bool touches_all, bool moves_average) {
    Variables<float> variables;
    const auto w =
        variables.add("w", Table(numbers_of<float>(rows * width, 1).reshaped<Eigen::RowMajor>(rows, width)));
    using R = std::remove_cvref_t<decltype(rule)>;
    Model<float> expected = model_of(rule, copy_of<float>(variables.value(w)));
    Local local{rule, variables};
    for (int t = 0; t < 3; ++t) {
      const std::vector<Index> indices(listed.begin(), listed.end());
      const Table values =
          numbers_of<float>(static_cast<Index>(indices.size()) * width, static_cast<std::uint64_t>(t + 2))
              .reshaped<Eigen::RowMajor>(static_cast<Index>(indices.size()), width);
      std::vector<float> g(static_cast<std::size_t>(rows * width), 0);
      for (std::size_t i = 0; i < indices.size(); ++i)
        for (Index j = 0; j < width; ++j)
          g[static_cast<std::size_t>(indices[i] * width + j)] = values(static_cast<Index>(i), j);
      Model<float> all = expected;
      update<Pack<float>>(rule, {.step = t, .schedule = t}, all, g);
      for (Index row = 0; row < rows; ++row)
        if (touches_all || listed.contains(row))
          for (Index j = 0; j < width; ++j) {
            const auto at = static_cast<std::size_t>(row * width + j);
            expected.w[at] = all.w[at];
            for (std::size_t k = 0; k < slot_count_v<R>; ++k) expected.slots[k][at] = all.slots[k][at];
          }
        else if (moves_average)
          for (Index j = 0; j < width; ++j) {
            const auto at = static_cast<std::size_t>(row * width + j);
            float& average = expected.slots.back()[at];
            average -= 0.5F * (average - expected.w[at]);
          }
      local.set_rows(w, indices, values);
      local.apply_gradients();
    }
    CHECK(same_bits(copy_of<float>(local.value(w)), expected.w));
    for (std::size_t k = 0; k < slot_count_v<R>; ++k)
      CHECK(same_bits(copy_of<float>(local.slot(R::slots[k].name, w)), expected.slots[k]));
  };
  check(Sgd{.learning_rate = 0.5}, false, false);
  check(Momentum{.learning_rate = 0.5}, false, false);
  check(Adagrad{}, false, false);
  check(Adam{}, true, false);
  check(Adam{.lazy_rows = true}, false, false);
  check(MovingAverage{Momentum{}, 0.5}, false, true);
  check(MovingAverage{Adam{}, 0.5}, true, false);
}

TEST_CASE("local: for whole-variable rules rows are a dense gradient with zeros", "[optimizers][local]") {
  const auto run = [](bool sparse) {
    Variables<float> variables;
    const auto w = variables.add("w", Table(Table::Constant(70, 3, 2)));
    const auto other = variables.add("other", numbers_of<float>(5, 2));
    Local local{Lamb{}, variables};
    for (int t = 0; t < 3; ++t) {
      if (sparse) {
        local.set_rows(w, std::vector{1, 69}, Table(Table::Constant(2, 3, static_cast<float>(t + 1))));
      } else {
        Table g = Table::Zero(70, 3);
        g.row(1).setConstant(static_cast<float>(t + 1));
        g.row(69) = g.row(1);
        local.set_gradient(w, g);
      }
      if (t == 1) local.set_gradient(other, numbers_of<float>(5, 3));
      local.apply_gradients();
    }
    auto bits = copy_of<float>(local.value(w));
    for (const auto& more : {copy_of<float>(local.slot("v", w)), copy_of<float>(local.value(other))})
      bits.insert(bits.end(), more.begin(), more.end());
    return bits;
  };
  CHECK(same_bits(run(true), run(false)));
}

TEST_CASE("local: rows are summed over equal indices and calls, and forgotten after the step",
          "[optimizers][local]") {
  Variables<float> variables;
  const auto w = variables.add("w", Table(Table::Zero(4, 2)));
  Local local{Sgd{.learning_rate = 1}, variables};
  Table rows(3, 2);
  rows << 1, 2, 10, 20, 100, 200;
  local.set_rows(w, std::vector<int>{2, 0, 2}, rows);
  local.set_rows(w, std::vector<std::uint8_t>{2}, Table(Table::Constant(1, 2, 1000)));
  local.apply_gradients();
  Table expected(4, 2);
  expected << -10, -20, 0, 0, -1101, -1202, 0, 0;
  CHECK(local.value(w) == expected);
  local.set_rows(w, std::vector<int>{1}, Table(Table::Ones(1, 2)));
  local.apply_gradients();
  expected.row(1).setConstant(-1);
  CHECK(local.value(w) == expected);
  local.set_rows(w, std::vector<int>{}, Table(0, 2));  // present, and empty
  CHECK(local.apply_gradients().status == Status::accepted);
  CHECK(local.value(w) == expected);
}

TEST_CASE("local: PerVariable gives groups their own options", "[optimizers][local]") {
  Variables<float> variables;
  const auto kernel = variables.add("kernel", Eigen::MatrixXf(Eigen::MatrixXf::Ones(3, 6)));
  const auto bias = variables.add("bias", Column<float>::Ones(3));
  const auto frozen = variables.add("frozen", numbers_of<float>(20, 1));
  const auto fast = variables.add("fast", Column<float>::Ones(17));
  const auto frozen_before = copy_of<float>(variables.value(frozen));
  const PerVariable recipe{AdamW{.learning_rate = 0.25, .weight_decay = 0.5},
                           [](AdamW& rule, const VariableInfo& v) {
                             if (v.rank() < 2) rule.weight_decay = 0;
                             if (v.name == "fast") rule.learning_rate = 1.0;
                           },
                           [](const VariableInfo& v) { return v.name != "frozen"; }};
  Local local{recipe, variables};
  const auto gradients = [&] {
    local.set_gradient(kernel, Eigen::MatrixXf::Zero(3, 6));
    local.set_gradient(bias, Column<float>::Zero(3));
    local.set_gradient(frozen, numbers_of<float>(20, 2));
    local.set_gradient(fast, Column<float>::Constant(17, 0.5));
  };
  gradients();
  local.apply_gradients();
  CHECK(local.value(kernel) == Eigen::MatrixXf::Constant(3, 6, 1 - 0.25F * 0.5F));
  CHECK(local.value(bias) == Column<float>::Ones(3));
  CHECK(same_bits(copy_of<float>(local.value(frozen)), frozen_before));
  CHECK(local.slot("m", frozen) == Column<float>::Zero(20));
  CHECK(local.value(fast)[16] == Approx(0).margin(1e-6));  // the first step of Adam is the rate
  CHECK(local.value(fast)[0] == local.value(fast)[16]);
  local.set_gradient(bias, Column<float>::Ones(3));  // the others absent: neither decay nor move
  local.apply_gradients();
  CHECK(local.value(kernel)(0, 0) == 1 - 0.25F * 0.5F);
  CHECK(local.value(bias)[0] < 1);
  CHECK(padding_is_zero(variables));
}

TEST_CASE("local: PerVariable reaches whole-variable rules and initial slots", "[optimizers][local]") {
  Variables<float> variables;
  const auto a = variables.add("a", Column<float>::Ones(20));
  const auto b = variables.add("b", Column<float>::Ones(20));
  Local local{PerVariable{Adagrad{},
                          [](Adagrad& rule, const VariableInfo& v) {
                            rule.initial_accumulator_value = v.name == "a" ? 3 : 8;
                          }},
              variables};
  CHECK(local.slot("accumulator", a) == Column<float>::Constant(20, 3));
  CHECK(local.slot("accumulator", b) == Column<float>::Constant(20, 8));

  Variables<float> others;
  const auto c = others.add("c", Column<float>::Ones(20));
  const auto d = others.add("d", Column<float>::Ones(20));
  Local whole{
      PerVariable{Lamb{.weight_decay = 0},
                  [](Lamb& rule, const VariableInfo& v) { rule.layer_adaptation = v.name == "c"; }, nullptr},
      others};
  whole.set_gradient(c, Column<float>::Constant(20, 0.5));
  whole.set_gradient(d, Column<float>::Constant(20, 0.5));
  whole.apply_gradients();
  CHECK(whole.value(c)[0] == Approx(1 - 1e-3).epsilon(1e-5));  // norms are equal here
  CHECK(whole.value(d)[0] == Approx(1 - 1e-3).epsilon(1e-5));
  whole.set_gradient(c, Column<float>::Constant(20, -5));
  whole.set_gradient(d, Column<float>::Constant(20, -5));
  whole.apply_gradients();
  CHECK(whole.value(c)[0] != whole.value(d)[0]);  // the ratio differs now
}

TEST_CASE("local: clipping limits the norm over all variables", "[optimizers][local]") {
  Variables<double> variables;
  const auto a = variables.add("a", Column<double>::Zero(1));
  const auto b = variables.add("b", Column<double>::Zero(1));
  const auto frozen = variables.add("frozen", Column<double>::Zero(1));
  Local local{PerVariable{Sgd{1.0}, nullptr, [](const VariableInfo& v) { return v.name != "frozen"; }},
              variables, LocalOptions{.clip_norm = 1}};
  local.set_gradient(a, Column<double>::Constant(1, 3));
  local.set_gradient(b, Column<double>::Constant(1, 4));
  local.set_gradient(frozen, Column<double>::Constant(1, 1e6));  // no part of the norm
  local.apply_gradients();
  CHECK(local.value(a)[0] == Approx(-0.6).epsilon(1e-14));
  CHECK(local.value(b)[0] == Approx(-0.8).epsilon(1e-14));
  const double before = local.value(a)[0];
  local.set_gradient(a, Column<double>::Constant(1, 0.3));  // below the limit: exactly as it is
  local.apply_gradients();
  CHECK(local.value(a)[0] == before - 0.3);
}

TEST_CASE("local: clipping sees rows and windows as they are applied", "[optimizers][local]") {
  Variables<double> variables;
  const auto w = variables.add("w", Eigen::Matrix<double, 2, 1, Eigen::ColMajor>(0, 0));
  Local local{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 2}}, variables, LocalOptions{.clip_norm = 5}};
  local.set_rows(w, std::vector{0}, Eigen::Vector2d(12, 0).head(1));
  CHECK(local.apply_gradients().status == Status::accumulated);
  local.set_rows(w, std::vector{1}, Eigen::Vector2d(16, 0).head(1));
  local.apply_gradients();  // the mean (6, 8) has norm 10
  CHECK(local.value(w)[0] == Approx(-3).epsilon(1e-14));
  CHECK(local.value(w)[1] == Approx(-4).epsilon(1e-14));
}

TEST_CASE("local: a gradient that is not finite is used or skipped, as asked", "[optimizers][local]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const NonFinite policy :
       {NonFinite::propagate, NonFinite::skip_contribution, NonFinite::skip_update}) {
    Variables<float> variables;
    const auto a = variables.add("a", Column<float>::Ones(20));
    const auto b = variables.add("b", Column<float>::Ones(20));
    Local local{Adam{}, variables, LocalOptions{.non_finite = policy}};
    local.set_gradient(a, Column<float>::Ones(20));
    local.gradient(b).setConstant(1)[19] = nan;
    const StepResult result = local.apply_gradients();
    CHECK(local.sequence() == 1);
    if (policy == NonFinite::propagate) {
      CHECK(result.status == Status::accepted);
      CHECK(std::isnan(local.value(b)[19]));
      CHECK(local.global_step() == 1);
    } else {
      CHECK(result.status == Status::skipped);
      CHECK(result.culprit == 0);
      CHECK(result.contributions == 0);
      CHECK(local.global_step() == 0);
      CHECK(local.value(a) == Column<float>::Ones(20));
      CHECK(local.slot("m", a) == Column<float>::Zero(20));
      CHECK_THROWS_AS(local.apply_gradients(), NoGradients);  // the skipped gradient is gone
      local.set_gradient(a, Column<float>::Ones(20));
      CHECK(local.apply_gradients().status == Status::accepted);
      CHECK(local.value(b) == Column<float>::Ones(20));
    }
  }
}

TEST_CASE("local: refused calls change nothing", "[optimizers][local]") {
  Variables<float> variables, others;
  const auto w = variables.add("w", Column<float>::Ones(3));
  const auto other = others.add("w", Column<float>::Ones(3));
  bool bad_rate = false;
  Local local{Momentum{.learning_rate = [&](std::int64_t) { return bad_rate ? std::nan("") : 1.0; }},
              variables};
  CHECK_THROWS_AS(local.apply_gradients(), NoGradients);
  CHECK_THROWS_AS(local.set_gradient(w, Column<float>::Ones(4)), ShapeMismatch);
  CHECK_THROWS_AS(local.apply_gradients(), NoGradients);
  CHECK_THROWS_AS(local.gradient(other), UnknownVariable);
  CHECK_THROWS_AS(local.value(other), UnknownVariable);
  CHECK_THROWS_AS(local.slot("momentum", other), UnknownVariable);
  CHECK_THROWS_WITH(local.slot("m", w), ContainsSubstring("'m'") && ContainsSubstring("momentum"));
  for (const double weight : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    local.set_gradient(w, Column<float>::Ones(3));
    CHECK_THROWS_AS(local.apply_gradients({.weight = weight}), InvalidArgument);
  }
  bad_rate = true;
  CHECK_THROWS_AS(local.apply_gradients(), InvalidArgument);
  CHECK(local.global_step() == 0);
  CHECK(local.value(w) == Column<float>::Ones(3));
  CHECK(local.slot("momentum", w) == Column<float>::Zero(3));
  bad_rate = false;
  CHECK(local.apply_gradients().global_step == 1);  // the gradient is still there
  CHECK(local.value(w) == Column<float>::Zero(3));
  CHECK_THROWS_AS((Local{Sgd{}, variables}), UsageError);
  CHECK_THROWS_AS((Local{Sgd{}, others, LocalOptions{.clip_norm = -1}}), InvalidArgument);
  CHECK_THROWS_AS((Local{Sgd{}, others, LocalOptions{.clip_norm = std::nan("")}}), InvalidArgument);
  CHECK_NOTHROW(Local{Sgd{}, others});  // and the set is free again
}

TEST_CASE("local: counts from the given step, and runs a loop over itself", "[optimizers][local]") {
  Variables<double> variables;
  const auto w = variables.add("w", Column<double>::Zero(1));
  Local local{Sgd{1.0}, variables, LocalOptions{.global_step = 100}};
  local.run([&](auto& replica) {
    CHECK(&replica == &local);
    while (replica.global_step() < 103) {
      const StepResult result = replica.minimize([&](auto& r) { r.gradient(w)[0] = 1; });
      CHECK(result.global_step == replica.global_step());
    }
  });
  CHECK(local.index() == 0);
  CHECK(local.updates() == 3);
  CHECK(local.sequence() == 3);
  CHECK(local.value(w)[0] == -3);
  Local moved(std::move(local));
  moved.set_gradient(w, Column<double>::Ones(1));
  CHECK(moved.apply_gradients().global_step == 104);
  CHECK(&moved.variables() == &variables);
  CHECK(variables.value(w)[0] == -4);
}

TEST_CASE("local: schedules see the count of updates, the start added", "[optimizers][local]") {
  Variables<double> variables;
  const auto w = variables.add("w", Column<double>::Zero(1));
  std::vector<std::int64_t> asked;
  Local local{Sgd{.learning_rate =
                      [&](std::int64_t step) {
                        asked.push_back(step);
                        return 1.0;
                      }},
              variables, LocalOptions{.global_step = 5}};
  for (int t = 0; t < 3; ++t) {
    local.set_gradient(w, Column<double>::Ones(1));
    local.apply_gradients();
  }
  CHECK(asked == std::vector<std::int64_t>{5, 6, 7});
}

TEST_CASE("local: the memory of a gradient is not what the last step left in it", "[optimizers][local]") {
  Variables<float> variables;
  const auto w = variables.add("w", Column<float>::Ones(3));
  Local local{Sgd{}, variables};
  local.set_gradient(w, Column<float>::Constant(3, 5));
  local.apply_gradients();
#ifdef NDEBUG
  (void)local.gradient(w);
#else
  CHECK(local.gradient(w).array().isNaN().all());
#endif
  local.gradient(w).setConstant(7);
  CHECK(local.gradient(w) == Column<float>::Constant(3, 7));  // asking again in the same step keeps it
  local.set_gradient(w, Column<float>::Constant(3, 1));
  CHECK(local.gradient(w) == Column<float>::Constant(3, 1));
  CHECK_THROWS_AS(local.set_rows(w, std::vector{0}, Column<float>::Ones(1)), UsageError);
}

TEMPLATE_TEST_CASE("local: gradients of 16 bits", "[optimizers][local]", Eigen::half, Eigen::bfloat16) {
  Variables<float, TestType> variables;
  const auto w = variables.add("w", Column<float>::Zero(37));
  const auto rows = variables.add("rows", Table(Table::Zero(3, 5)));
  Local local{Sgd{1.0}, variables};
  const Column<float> g = numbers_of<float>(37, 3);
  local.set_gradient(w, g);
  local.set_rows(rows, std::vector{1, 1}, Table(Table::Constant(2, 5, 1.5F)));
  local.apply_gradients();
  CHECK(local.value(w) == Column<float>(-g.cast<TestType>().template cast<float>()));
  CHECK(local.value(rows)(1, 4) == -3);
  CHECK(local.value(rows)(2, 4) == 0);
  local.gradient(w).setConstant(static_cast<TestType>(0.5F));
  local.apply_gradients();
  CHECK(local.value(w)[36] == -static_cast<float>(static_cast<TestType>(g[36])) - 0.5F);
}

TEST_CASE("local: a steady step allocates nothing", "[optimizers][local]") {
  const auto check = [](const auto& recipe, const LocalOptions& options) {
    Variables<float> variables;
    const auto a = variables.add("a", numbers_of<float>(5000, 1));
    const auto b = variables.add("b", Table(Table::Ones(70, 3)));
    const auto c = variables.add("c", Column<float>::Ones(3));
    Local local{recipe, variables, options};
    const Column<float> g = numbers_of<float>(5000, 2);
    const std::vector<int> indices{3, 64, 3};
    const Table rows = Table::Ones(3, 3);
    std::uint64_t before = 0;
    for (int t = 0; t < 24; ++t) {
      if (t == 8) before = allocations();
      local.set_gradient(a, g);
      if (t % 2 == 0) local.set_rows(b, indices, rows);
      if (t % 3 == 0) local.gradient(c).setConstant(1);
      local.apply_gradients();
    }
    return allocations() - before;
  };
  CHECK(check(Sgd{}, {}) == 0);
  CHECK(check(Adam{}, {.clip_norm = 1, .non_finite = NonFinite::skip_update}) == 0);
  CHECK(check(Lamb{}, {.clip_norm = 1}) == 0);
  CHECK(check(MovingAverage{Adam{}}, {}) == 0);
  CHECK(check(PerVariable{Adam{},
                          [](Adam& rule, const VariableInfo& v) { rule.beta1 = v.rank() > 1 ? 0.5 : 0; }},
              {}) == 0);
  CHECK(check(GradientAggregation<Adam>{Adam{}, {.grad_steps = 4}}, {.clip_norm = 1}) == 0);
}

#if defined(__SSE__)
TEST_CASE("local: the caller's floating-point mode changes no bit and is kept", "[optimizers][local]") {
  constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040, toward_zero = 0x6000;
  const unsigned usual = _mm_getcsr();
  const auto run = [&](unsigned mode) {
    Variables<float> variables;
    const auto w = variables.add("w", Column<float>::Zero(40));
    Local local{GradientAggregation<Momentum>{Momentum{.learning_rate = 0.3}, {.grad_steps = 2}}, variables,
                LocalOptions{.clip_norm = 1e6}};
    for (int t = 0; t < 4; ++t) {
      Column<float> g = Column<float>::Constant(40, 1e-40F * static_cast<float>(t + 1));  // denormal
      g.tail(20) = numbers_of<float>(20, static_cast<std::uint64_t>(t));
      _mm_setcsr(usual | mode);
      std::copy(g.data(), g.data() + 40, local.gradient(w).data());
      local.apply_gradients();
      const unsigned after = _mm_getcsr() & ~0x3FU;  // without the sticky flags
      _mm_setcsr(usual);
      CHECK(after == ((usual | mode) & ~0x3FU));
    }
    return copy_of<float>(local.value(w));
  };
  const auto bits = run(0);
  CHECK(bits[0] != 0);
  CHECK(same_bits(run(flush_to_zero | denormals_are_zero), bits));
  CHECK(same_bits(run(toward_zero), bits));
}
#endif
