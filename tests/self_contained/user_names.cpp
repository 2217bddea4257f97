// SPDX-License-Identifier: MIT
// Programs call things what they like: names that the headers have inside are theirs as well, and no compiler
// may warn of it. The work below makes the compiler read the templates again after these names.
#include <lockstep/lockstep.hpp>

#include <vector>

extern int a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z;
extern int at, begin, bit, block, bytes, callable, clip, control, count, data, end, error, extent, first,
    from, functor, gradient, has, id, info, input, items, last, layout, left, name, next, number, options,
    output, owner, part, parts, place, presence, process, reason, replica, replicas, result, row, rows, rule,
    scalar, scale, shape, size, slot, slots, source, sources, squares, start, state, step, stop, sum, threads,
    tile, to, value, values, variable, variables, weight, width, word, worker;

int main() {
  using Table = Eigen::Matrix<float, 4, 2, Eigen::RowMajor>;
  lockstep::Variables<> own_variables;
  const auto dense = own_variables.add("dense", Eigen::VectorXf::Constant(8, 1));
  const auto table = own_variables.add("table", Table::Constant(1).eval());
  lockstep::GradientAggregation trainer{
      lockstep::SyncReplicas{lockstep::Adam{.learning_rate = 0.1},
                             own_variables,
                             {.replicas_to_aggregate = 2, .clip_norm = 1.0}},
      {.grad_steps = 2}};
  trainer.run([&](auto& own_replica) {
    while (own_replica.global_step() < 2) {
      own_replica.set_gradient(dense, own_replica.value(dense));
      own_replica.set_rows(table, std::vector{0, 3}, Table::Constant(1).topRows(2));
      own_replica.apply_gradients();
    }
  });
  return trainer.global_step() == 2 ? 0 : 1;
}
