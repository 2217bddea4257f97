// SPDX-License-Identifier: MIT
/// @file
/// Checkpoints every n updates: copied inside the update, written outside of it. Opt-in, as safetensors.hpp.
#pragma once

#include <lockstep/checkpoint/safetensors.hpp>
#include <lockstep/checkpoint/snapshot.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Options of `Checkpointer`.
template <class T>
struct CheckpointerOptions {
  std::int64_t every = 1;  ///< updates from one checkpoint to the next
  /// What writes a file; `save` unless said otherwise.
  std::function<void(const std::filesystem::path&, const Snapshot<T>&)> write = {};
};

/// Takes a copy of the training every n updates and has it written by whoever calls. It starts no thread: a
/// replica calls `write_pending()` in its loop and writes while the others compute, up to the next update
/// that needs it; or a thread of the program calls `write_until()`, and then no replica waits for the disk.
/// @code{.cpp}
/// Checkpointer<float> checkpoints{"model.safetensors", {.every = 100}};
/// SyncReplicas<Adam> trainer{Adam{}, variables, {.replicas_to_aggregate = 4, .hooks = {
///     .after_update = [&](const UpdateInfo& update) { checkpoints.take(trainer, update.global_step); }}}};
/// trainer.run([&](auto& replica) {
///   while (replica.global_step() < 1000) {
///     compute_gradients(replica);
///     replica.apply_gradients();
///     checkpoints.write_pending();
///   }
/// });
/// checkpoints.write_pending();  // the last one, if no replica came by any more
/// @endcode
/// At most two copies count: one that is being written and the newest that waits. A newer one replaces the
/// one that waits, so a slow disk makes checkpoints rarer and never makes training wait. The memory of copies
/// is kept for the next ones, up to three: new memory would cost several times what the copy costs.
/// @tparam T scalar of the trainer's variables.
/// @par Thread safety All members may be called from any thread.
template <class T = float>
class Checkpointer {
 public:
  /// @param path of the file, replaced each time; "{step}" in its name becomes the global step.
  /// @throws InvalidArgument if `every` is not positive.
  explicit Checkpointer(std::filesystem::path path, CheckpointerOptions<T> options = {})
      : path_(std::move(path)), options_(std::move(options)) {
    if (options_.every < 1)
      throw InvalidArgument(detail::text("every: must be at least 1, got ", options_.every));
    if (!options_.write) options_.write = save<T>;
    spares_.reserve(3);
  }

  /// Copies the state of a trainer if `global_step` is a multiple of `every`. Writes nothing. To be called
  /// once per update: in the hook after it, or where `Local` reports one.
  /// @return whether it took a copy.
  /// @throws what `trainer.snapshot()` throws.
  /// @par Cost nothing, or one copy of variables, slots and window; the first ones also take the memory.
  template <class Trainer>
  bool take(const Trainer& trainer, std::int64_t global_step) {
    if (global_step % options_.every != 0) return false;
    std::optional<Pending> copy(Pending{global_step, spare()});
    if constexpr (requires { trainer.snapshot_into(copy->snapshot); })
      trainer.snapshot_into(copy->snapshot);
    else
      copy->snapshot = trainer.snapshot();
    {
      const std::lock_guard lock(mutex_);
      pending_.swap(copy);
      if (copy) spares_.push_back(std::move(copy->snapshot));
    }
    changed_.notify_all();
    return true;
  }

  /// Writes the copy that waits, on this thread. Returns at once if there is none, or if another thread is
  /// writing: files are written one after the other, so that an older one never replaces a newer one.
  /// @return whether it wrote a file.
  /// @throws what `save` throws; the copy waits for the next call, unless there is a newer one.
  bool write_pending() {
    std::optional<Pending> mine;
    {
      const std::lock_guard lock(mutex_);
      if (is_writing_ || !pending_) return false;
      is_writing_ = true;
      mine.swap(pending_);
    }
    try {
      options_.write(file_of(mine->step), mine->snapshot);
    } catch (...) {
      end_writing([&] {
        if (pending_)
          spares_.push_back(std::move(mine->snapshot));
        else
          pending_.swap(mine);
      });
      throw;
    }
    end_writing([&] {
      written_ = mine->step;
      spares_.push_back(std::move(mine->snapshot));
    });
    return true;
  }

  /// Waits for copies and writes them until `stop` is requested, and then the one that still waits. For a
  /// thread of the program.
  /// @throws what `save` throws.
  void write_until(std::stop_token stop) {
    for (bool goes_on = true; goes_on;) {
      {
        std::unique_lock lock(mutex_);
        goes_on = changed_.wait(lock, stop, [this] { return pending_ && !is_writing_; });
        if (!goes_on) changed_.wait(lock, [this] { return !is_writing_; });
      }
      write_pending();
    }
  }

  /// Global step of the file that was written last; nothing if there is none.
  std::optional<std::int64_t> written() const {
    const std::lock_guard lock(mutex_);
    return written_;
  }

 private:
  struct Pending {
    std::int64_t step;
    Snapshot<T> snapshot;
  };

  /// A snapshot whose memory can be used again, or a new one.
  Snapshot<T> spare() {
    const std::lock_guard lock(mutex_);
    if (spares_.empty()) return {};
    Snapshot<T> last = std::move(spares_.back());
    spares_.pop_back();
    return last;
  }
  template <class F>
  void end_writing(F&& result) {
    {
      const std::lock_guard lock(mutex_);
      is_writing_ = false;
      result();
    }
    changed_.notify_all();
  }

  std::filesystem::path file_of(std::int64_t step) const {
    constexpr std::string_view mark = "{step}";
    std::string name = path_.filename().string();
    if (const std::size_t at = name.find(mark); at != std::string::npos)
      name.replace(at, mark.size(), std::to_string(step));
    return path_.parent_path() / name;
  }

  const std::filesystem::path path_;
  CheckpointerOptions<T> options_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<Pending> pending_;
  std::vector<Snapshot<T>> spares_;
  bool is_writing_ = false;
  std::optional<std::int64_t> written_;
};

LOCKSTEP_NAMESPACE_END
