// SPDX-License-Identifier: MIT
// Learns vectors of words from a text (skip-gram with negative sampling), once with replicas that are threads
// and once with replicas that are processes: both end with the same bits. A batch touches few words, so
// gradients consist of rows.
//
//   sparse_embeddings TEXT [--transport memory|shm]
#include <lockstep/lockstep.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace ls = lockstep;

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr int k_replicas = 2, k_updates = 3000;
constexpr int k_size = 16, k_batch = 32, k_negatives = 5, k_window = 2;

struct Text {
  std::map<std::string, int> numbers;      // of the words that have at least four letters
  std::vector<int> words;                  // one after the other
  std::vector<std::pair<int, int>> pairs;  // words that stand close together in a sentence

  explicit Text(std::istream& file) {
    std::string word;
    std::size_t sentence = 0;  // where it starts
    for (char c = 0; file.get(c);) {
      if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
        word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        continue;
      }
      if (word.size() >= 4) add(word, sentence);
      word.clear();
      if (c == '.') sentence = words.size();
    }
  }

 private:
  void add(const std::string& word, std::size_t sentence) {
    const int number = numbers.try_emplace(word, static_cast<int>(numbers.size())).first->second;
    for (std::size_t i = sentence; i < words.size(); ++i)
      if (i + k_window >= words.size()) {
        pairs.emplace_back(number, words[i]);
        pairs.emplace_back(words[i], number);
      }
    words.push_back(number);
  }
};

Matrix random_vectors(Eigen::Index count) {
  std::mt19937 random(1);
  return Matrix::NullaryExpr(count, k_size,
                             [&] { return static_cast<float>(random() % 1000) / 8000 - 0.0625F; });
}

// The vectors of all words after a training.
template <class Transport>
Matrix train(const Text& text, const Transport& transport) {
  const auto count = static_cast<Eigen::Index>(text.numbers.size());
  ls::Variables<> variables;
  const auto vectors = variables.add("vectors", random_vectors(count));
  const auto contexts = variables.add("contexts", Matrix(Matrix::Zero(count, k_size)));

  ls::SyncReplicas trainer{
      ls::Adagrad{.learning_rate = 0.1}, variables, {.replicas_to_aggregate = k_replicas}, transport};
  trainer.run([&](auto& replica) {
    std::vector<int> rows(k_batch), context_rows(k_batch * (1 + k_negatives));
    Matrix gradient(k_batch, k_size), context_gradient(k_batch * (1 + k_negatives), k_size);
    while (replica.global_step() < k_updates) {
      // Depends on nothing but the number of the batch, so it does not matter who computes it.
      const auto batch = static_cast<std::size_t>(replica.sequence() * k_replicas + replica.index());
      std::mt19937 random(static_cast<std::uint32_t>(batch));
      gradient.setZero();
      for (std::size_t i = 0, at = 0; i < k_batch; ++i) {
        const auto [word, near] = text.pairs[(batch * k_batch + i) * 7919 % text.pairs.size()];
        const auto row = static_cast<Eigen::Index>(i);
        rows[i] = word;
        for (int k = 0; k <= k_negatives; ++k, ++at) {
          const int other = k == 0 ? near : text.words[random() % text.words.size()];
          const auto vector = replica.value(vectors).row(word), context = replica.value(contexts).row(other);
          const float guess = 1 / (1 + std::exp(-vector.dot(context)));  // that they stand close together
          const float error = guess - (k == 0 ? 1.0F : 0.0F);
          gradient.row(row) += error * context;
          context_gradient.row(static_cast<Eigen::Index>(at)) = error * vector;
          context_rows[at] = other;
        }
      }
      replica.set_rows(vectors, rows, gradient / k_batch);  // rows of the same word are added up
      replica.set_rows(contexts, context_rows, context_gradient / k_batch);
      replica.apply_gradients();
    }
  });
  return variables.value(vectors);
}

// This process is replica 0; the others are forked.
Matrix train_in_processes(const Text& text) {
  const std::string session = "example-" + std::to_string(::getpid());
  for (int number = 1; number < k_replicas; ++number)
    if (::fork() == 0) {
      train(text, ls::SharedMemory{.name = session, .replica = number});
      std::exit(0);
    }
  Matrix vectors = train(text, ls::SharedMemory{.name = session, .replica = 0});
  while (::wait(nullptr) > 0) {
  }
  return vectors;
}

// The two words whose vectors have the smallest angles to that of `word`.
std::string neighbours(const Text& text, Matrix vectors, const std::string& word) {
  vectors.rowwise().normalize();
  const int wanted = text.numbers.at(word);
  std::vector<std::pair<float, std::string>> found;
  for (const auto& [other, number] : text.numbers)
    if (number != wanted) found.emplace_back(-vectors.row(wanted).dot(vectors.row(number)), other);
  std::sort(found.begin(), found.end());
  // By alphabet, so that rounding cannot swap them.
  const auto& [first, second] = std::minmax(found[0].second, found[1].second);
  return first + ", " + second;
}

int main(int argc, char** argv) {
  std::ifstream file(argc > 1 ? argv[1] : "examples/data/village.txt");
  const std::string transport = argc > 3 && std::string(argv[2]) == "--transport" ? argv[3] : "";
  const Text text(file);
  if (text.pairs.empty() || (argc > 2 && transport != "memory" && transport != "shm")) {
    std::fprintf(stderr, "usage: sparse_embeddings TEXT [--transport memory|shm]\n");
    return 2;
  }

  const Matrix vectors = transport == "memory" ? train(text, ls::InProcess{}) : train_in_processes(text);
  std::printf("%zu words, %zu pairs\n", text.numbers.size(), text.pairs.size());
  for (const char* word : {"baker", "cheese", "horse", "spring"})
    std::printf("%s: %s\n", word, neighbours(text, vectors, word).c_str());
  if (!transport.empty()) return 0;

  const bool is_same = vectors == train(text, ls::InProcess{});
  std::printf("threads end with the same bits as processes: %s\n", is_same ? "yes" : "no");
  return is_same ? 0 : 1;
}
