// Tests of a device's kernels that need nothing but a C++20 compiler (and nvcc, where the device is
// a GPU): no test framework, no library. `check_kernels cpu` runs them on the CPU backend, which
// keeps the references honest; `check_kernels cuda` on a GPU.
#pragma once

#include "worker/backend/device.h"
#include "worker/backend/kernels.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace rubato::worker::gpu {

using Floats = std::vector<float>;
using Ints = std::vector<std::int32_t>;
using Wide = std::vector<double>;

// SplitMix64.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};
Floats noise(std::size_t count, std::uint64_t seed, double size = 1.0);
Ints tokens(std::size_t count, std::uint64_t below, std::uint64_t seed);
inline Wide widen(const Floats& x) { return {x.begin(), x.end()}; }
inline std::int64_t count(const Floats& x) { return static_cast<std::int64_t>(x.size()); }
inline std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
inline std::string text(std::int64_t n) { return std::to_string(n); }

// Counts what was looked at and prints what was wrong.
class Report {
 public:
  // `what` names the kernel and its shape in the lines that follow.
  void begin(std::string what);
  void expect(bool holds, const std::string& sentence);
  // Equal bits; any NaN equals any other.
  void same(const Floats& got, const Floats& want, const char* of);
  void same(const Ints& got, const Ints& want, const char* of);
  // |got - want| <= bound element by element.
  void near(const Floats& got, const Wide& want, const Wide& bound, const char* of);
  // The norm of the error over that of `want` is at most `bound`, and no element is further off
  // than 16 times that, measured by the largest |want|.
  void close(const Floats& got, const Wide& want, double bound, const char* of);
  int failures() const { return failures_; }
  // One line of all that was begun since the last one.
  void line(const std::string& title);

 private:
  void fail(const std::string& sentence);
  std::string what_;
  int failures_ = 0;
  std::int64_t looked_at_ = 0;
  int failures_before_ = 0;
  double worst_ = 0;  // error over bound
};

// Buffers from host values and back. Outputs begin as NaN (all bits one), so that an element that
// no kernel wrote is seen.
class Bench {
 public:
  explicit Bench(Device& on) : device(on), stream(on.make_stream()) {}
  ~Bench() { clear(); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  Kernels& kernels() { return device.kernels(); }
  Buffer poisoned(DType type, std::int64_t count);
  Buffer floats(std::int64_t count) { return poisoned(DType::kF32, count); }
  Buffer upload(const Floats& values);
  Buffer upload(const Ints& values);
  Floats read(ConstBuffer buffer);
  Ints read_ints(ConstBuffer buffer);
  Wide read_wide(ConstBuffer buffer);
  // Gives back the memory of all buffers. Ends the program if anything was written between the end
  // of one and the next multiple of kDeviceAlignment.
  void clear();

  Device& device;
  std::unique_ptr<Stream> stream;

 private:
  template <class T>
  std::vector<T> read_as(ConstBuffer buffer);
  struct Lent {
    Arena arena;
    Buffer behind;
  };
  std::deque<Lent> lent_;
};

// Kernels that must give the bits of the CPU's own kernels.
void check_bits(Bench& bench, Report& report);
void check_llama(Bench& bench, Report& report);
// The others, against plain sums in double.
void check_values(Bench& bench, Report& report);
// Of these what a device may do in bf16: its products, of matrices and in attention.
void check_products(Bench& bench, Report& report, Precision precision);
void check_attention(Bench& bench, Report& report, Precision precision);
// Equal bits in every run, while another stream keeps the device busy with square products.
struct RepeatShapes {
  int runs;
  std::int64_t tokens, heads, head_size, vocabulary;
  std::int64_t columns;    // of logits: at least the vocabulary
  std::int64_t head_rows;  // of logits
  std::int64_t load_side;
};
void check_repeats(Bench& bench, Report& report, const RepeatShapes& s);
// A micro-batch of GPT-2 124M, small enough to be run a hundred times by a GPU.
constexpr RepeatShapes kRepeatsOfGpu = {100, 1024, 12, 64, 50257, 50304, 320, 1536};
// For a device that takes microseconds for an addition. Its runs are played in other orders.
constexpr RepeatShapes kRepeatsOfEmulator = {12, 80, 3, 20, 300, 320, 6, 32};
// Times of each kernel at GPT-2 124M's shapes, beside the ceilings measured in the same run.
void measure(Bench& bench);

}  // namespace rubato::worker::gpu
