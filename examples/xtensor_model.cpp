// SPDX-License-Identifier: MIT
// Two replicas find the kernel of a convolution (height, width, channels) from what it makes of small images.
// Variables and gradients are arrays of xtensor with any number of dimensions.
#include <lockstep/lockstep.hpp>
#include <lockstep/tensor/xtensor.hpp>

#if __has_include(<xtensor/xview.hpp>)
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>
#else  // since xtensor 0.26
#include <xtensor/core/xmath.hpp>
#include <xtensor/views/xview.hpp>
#endif

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>

namespace ls = lockstep;

using Array3 = xt::xtensor<float, 3>;

// An image of 6 x 6 pixels with two channels.
Array3 make_image(std::int64_t number) {
  std::mt19937 random(static_cast<std::uint32_t>(number));
  Array3 image = xt::zeros<float>({6, 6, 2});
  for (float& value : image) value = static_cast<float>(random() % 256) / 128 - 1;
  return image;
}

// What a kernel of 3 x 3 sees at a pixel.
auto patch_of(const Array3& image, std::size_t y, std::size_t x) {
  return xt::view(image, xt::range(y, y + 3), xt::range(x, x + 3), xt::all());
}

template <class A, class B>
float dot(const A& a, const B& b) {
  return xt::sum(a * b)();
}

int main() {
  Array3 wanted = xt::zeros<float>({3, 3, 2});
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted.flat(i) = 0.25F * static_cast<float>(i % 5) - 0.6F;

  ls::Variables<> variables;
  const auto kernel = variables.add("kernel", Array3(xt::zeros<float>({3, 3, 2})));

  ls::SyncReplicas trainer{ls::Adam{.learning_rate = 0.05}, variables, {.replicas_to_aggregate = 2}};
  trainer.run([&](auto& replica) {
    while (replica.global_step() < 400) {
      const Array3 image = make_image(replica.sequence() * 2 + replica.index());
      Array3 gradient = xt::zeros<float>({3, 3, 2});
      for (std::size_t y = 0; y < 4; ++y)
        for (std::size_t x = 0; x < 4; ++x) {
          const auto patch = patch_of(image, y, x);
          gradient += (dot(replica.value(kernel), patch) - dot(wanted, patch)) * patch / 16;
        }
      replica.set_gradient(kernel, gradient);
      replica.apply_gradients();
    }
  });

  for (std::size_t channel = 0; channel < 2; ++channel) {
    std::printf("channel %zu\n", channel);
    for (std::size_t y = 0; y < 3; ++y) {
      for (std::size_t x = 0; x < 3; ++x)
        std::printf(" %5.2f", static_cast<double>(variables.value(kernel)(y, x, channel)));
      std::printf("\n");
    }
  }
}
