// Times of each kernel at the shapes of GPT-2 124M with a micro-batch of 8 x 1 024 tokens. A sample
// is the time of several calls in a row, over their number; calls take turns on several sets of
// buffers, together larger than the L2 cache. Median, least and most of the samples.
#include "tests/gpu/suite.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

namespace rubato::worker::gpu {

namespace {

constexpr std::int64_t kTokens = 8192;
constexpr std::int64_t kHidden = 768;
constexpr std::int64_t kVocabulary = 50257;
constexpr std::int64_t kColumns = 50304;
constexpr std::int64_t kHeadRows = 320;          // of logits at a time (Gpt2::head)
constexpr std::int64_t kParameters = 124475904;  // 124M in blocks of 256
constexpr std::size_t kSets = 5;
constexpr int kSamples = 7;

struct Times {
  double median = 0, least = 0, most = 0;  // seconds a call
};

class Clockwork {
 public:
  explicit Clockwork(Bench& bench) : bench_(bench) {}

  // `run(set)` enqueues one call.
  Times time(const std::function<void(std::size_t)>& run) {
    const auto calls = [&](int count) {
      CHECK(bench_.stream->synchronize().ok());
      const auto begun = std::chrono::steady_clock::now();
      for (int i = 0; i < count; ++i) run(static_cast<std::size_t>(i) % kSets);
      CHECK(bench_.stream->synchronize().ok());
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    };
    calls(2);
    const double once = calls(3) / 3;
    const int count = std::clamp(static_cast<int>(0.02 / std::max(once, 1e-6)), 3, 400);
    std::vector<double> samples;
    for (int i = 0; i < kSamples; ++i) samples.push_back(calls(count) / count);
    std::ranges::sort(samples);
    return {samples[kSamples / 2], samples.front(), samples.back()};
  }

  double bytes(const char* name, double moved, const std::function<void(std::size_t)>& run) {
    const Times t = time(run);
    const double rate = moved / t.median / 1e9;
    std::printf("%-36s %9.1f us (%9.1f to %9.1f) %8.0f GB/s", name, t.median * 1e6, t.least * 1e6,
                t.most * 1e6, rate);
    if (copy_ > 0) std::printf("  %3.0f %% of a copy", 100 * rate / copy_);
    std::printf("\n");
    return rate;
  }
  double flops(const char* name, double done, const std::function<void(std::size_t)>& run) {
    const Times t = time(run);
    const double rate = done / t.median / 1e12;
    std::printf("%-36s %9.1f us (%9.1f to %9.1f) %8.2f TFLOP/s", name, t.median * 1e6,
                t.least * 1e6, t.most * 1e6, rate);
    if (product_ > 0) std::printf("  %3.0f %% of the large product", 100 * rate / product_);
    std::printf("\n");
    return rate;
  }
  void set_copy(double rate) { copy_ = rate; }
  void set_product(double rate) { product_ = rate; }

 private:
  Bench& bench_;
  double copy_ = 0, product_ = 0;
};

// Sets of one buffer, drawn once.
class Sets {
 public:
  Sets(Bench& bench, std::int64_t count, std::uint64_t seed)
      : count_(count), all_(bench.floats(static_cast<std::int64_t>(kSets) * count)) {
    const Buffer one = bench.upload(noise(static_cast<std::size_t>(count), seed));
    for (std::size_t i = 0; i < kSets; ++i) bench.device.copy(*bench.stream, (*this)[i], one);
  }
  Buffer operator[](std::size_t i) const {
    return all_.slice(static_cast<std::int64_t>(i) * count_, count_);
  }

 private:
  std::int64_t count_;
  Buffer all_;
};

void ceilings(Bench& bench, Clockwork& clock) {
  constexpr std::int64_t kLarge = 1 << 28;  // 1 GiB
  const Buffer from = bench.floats(kLarge), to = bench.floats(kLarge);
  clock.set_copy(clock.bytes("ceiling: device copy of 1 GiB", 8.0 * kLarge,
                             [&](std::size_t) { bench.device.copy(*bench.stream, to, from); }));
  constexpr std::int64_t kSide = 8192;
  const Buffer a = bench.upload(noise(kSide * kSide, 1)), c = bench.floats(kSide * kSide);
  clock.set_product(
      clock.flops("ceiling: product of 8192^3, f32", 2.0 * kSide * kSide * kSide, [&](std::size_t) {
        bench.kernels().gemm(*bench.stream, {.m = kSide, .n = kSide, .k = kSide}, a, a, {}, c);
      }));
  bench.clear();
}

void products(Bench& bench, Clockwork& clock) {
  const Sets x(bench, kTokens * kHidden, 1), wide(bench, kTokens * 4 * kHidden, 2);
  const Buffer weight = bench.upload(noise(4 * kHidden * kHidden, 3)),
               bias = bench.upload(noise(4 * kHidden, 4));
  const Buffer table = bench.upload(noise(kColumns * kHidden, 5)),
               logits = bench.floats(kHeadRows * kColumns);
  const Buffer small = bench.floats(4 * kHidden * kHidden), big = bench.floats(kColumns * kHidden);
  Kernels& kernels = bench.kernels();
  const auto run = [&](const char* name, const GemmShape& s, auto a, auto b, ConstBuffer with,
                       auto c) {
    clock.flops(name, 2.0 * static_cast<double>(s.m * s.n * s.k),
                [&](std::size_t i) { kernels.gemm(*bench.stream, s, a(i), b(i), with, c(i)); });
  };
  const auto all = [](Buffer buffer) { return [buffer](std::size_t) { return buffer; }; };
  const auto set = [](const Sets& sets, std::int64_t count) {
    return [&sets, count](std::size_t i) { return sets[i].slice(0, count); };
  };
  const std::int64_t n = kTokens, c = kHidden;
  run("gemm up (c, 4c), bias", {.m = n, .n = 4 * c, .k = c}, set(x, n * c), all(weight), bias,
      set(wide, n * 4 * c));
  run("gemm down (4c, c), bias", {.m = n, .n = c, .k = 4 * c}, set(wide, n * 4 * c), all(weight),
      bias.slice(0, c), set(x, n * c));
  run("gemm out (c, c), bias", {.m = n, .n = c, .k = c}, set(x, n * c), all(weight.slice(0, c * c)),
      bias.slice(0, c), set(wide, n * c));
  run("gemm up, gradient of x", {.m = n, .n = c, .k = 4 * c, .transpose_b = true},
      set(wide, n * 4 * c), all(weight), {}, set(x, n * c));
  run("gemm up, gradient of w", {.m = c, .n = 4 * c, .k = n, .transpose_a = true}, set(x, n * c),
      set(wide, n * 4 * c), {}, all(small));
  run("gemm out, gradient of w", {.m = c, .n = c, .k = n, .transpose_a = true}, set(x, n * c),
      set(wide, n * c), {}, all(small.slice(0, c * c)));
  run("gemm head, 320 rows", {.m = kHeadRows, .n = kColumns, .k = c, .transpose_b = true},
      set(x, kHeadRows * c), all(table), {}, all(logits));
  run("gemm head, gradient of x", {.m = kHeadRows, .n = c, .k = kColumns}, all(logits), all(table),
      {}, set(x, kHeadRows * c));
  run("gemm head, gradient of w, adds",
      {.m = kColumns, .n = c, .k = kHeadRows, .transpose_a = true, .accumulate = true}, all(logits),
      set(x, kHeadRows * c), {}, all(big));
  bench.clear();
}

void attention(Bench& bench, Clockwork& clock) {
  const AttentionShape shape{.batch = 8, .length = 1024, .heads = 12, .head_size = 64};
  const Sets qkv(bench, 3 * kTokens * kHidden, 1), out(bench, kTokens * kHidden, 2),
      dqkv(bench, 3 * kTokens * kHidden, 3);
  const Buffer saved = bench.floats(bench.kernels().attention_saved(shape)),
               work = bench.floats(bench.kernels().attention_workspace(shape));
  // Two products of length^2 / 2 a head forward, five backward.
  const double product = 2.0 * 8 * 12 * 1024 * 1024 / 2 * 64;
  clock.flops("attention forward", 2 * product, [&](std::size_t i) {
    bench.kernels().attention_forward(*bench.stream, shape, qkv[i], saved, out[i]);
  });
  clock.flops("attention backward", 5 * product, [&](std::size_t i) {
    bench.kernels().attention_backward(*bench.stream, shape, qkv[i], saved, out[i], out[i], work,
                                       dqkv[i]);
  });
  bench.clear();
}

void activations(Bench& bench, Clockwork& clock) {
  const std::int64_t n = kTokens, c = kHidden;
  const double row = 4.0 * static_cast<double>(n * c);
  Kernels& kernels = bench.kernels();
  Stream& stream = *bench.stream;
  const Sets x(bench, n * c, 1), y(bench, n * c, 2), z(bench, n * c, 3), wide(bench, 4 * n * c, 4),
      wide2(bench, 4 * n * c, 5);
  const Buffer weight = bench.upload(noise(kHidden, 6)), mean = bench.upload(noise(kTokens, 7)),
               rstd = bench.upload(noise(kTokens, 8));
  const Buffer dw = bench.floats(c), db = bench.floats(c), sums = bench.floats(4 * c);
  clock.bytes("layernorm forward", 2 * row, [&](std::size_t i) {
    kernels.layernorm_forward(stream, c, 1e-5f, x[i], weight, weight, y[i], mean, rstd);
  });
  clock.bytes("add and layernorm forward", 4 * row, [&](std::size_t i) {
    kernels.add_layernorm_forward(stream, c, 1e-5f, x[i], y[i], weight, weight, z[i],
                                  wide[i].slice(0, n * c), mean, rstd);
  });
  clock.bytes("layernorm backward", 4 * row, [&](std::size_t i) {
    kernels.layernorm_backward(stream, c, x[i], weight, mean, rstd, y[i], z[i], dw, db);
  });
  clock.bytes("gelu forward", 8 * row,
              [&](std::size_t i) { kernels.gelu_forward(stream, wide[i], wide2[i]); });
  clock.bytes("gelu backward", 12 * row,
              [&](std::size_t i) { kernels.gelu_backward(stream, wide[i], wide2[i]); });
  clock.bytes("add", 3 * row, [&](std::size_t i) { kernels.add(stream, x[i], y[i], z[i]); });
  clock.bytes("column sums of (n, c)", row,
              [&](std::size_t i) { kernels.column_sum(stream, c, x[i], dw); });
  clock.bytes("column sums of (n, 4c)", 4 * row,
              [&](std::size_t i) { kernels.column_sum(stream, 4 * c, wide[i], sums); });
  const Buffer ids = bench.upload(tokens(kTokens, kVocabulary, 9)),
               table = bench.upload(noise(kVocabulary * kHidden, 10));
  const Buffer work = bench.poisoned(DType::kI32, kernels.embed_workspace(n, kVocabulary));
  clock.bytes("embedding forward", 2 * row, [&](std::size_t i) {
    kernels.embed_forward(stream, 1024, c, ids, table, x[0].slice(0, 1024 * c), y[i]);
  });
  clock.bytes("embedding backward", 2 * row, [&](std::size_t i) {
    kernels.embed_backward(stream, 1024, c, kVocabulary, ids, y[i], work, table,
                           x[0].slice(0, 1024 * c));
  });
  const Sets logits(bench, kHeadRows * kColumns, 11);
  const Buffer targets = bench.upload(tokens(kHeadRows, kVocabulary, 12)),
               losses = bench.floats(kHeadRows);
  clock.bytes("cross-entropy, 320 rows", 5 * 4.0 * kHeadRows * kColumns, [&](std::size_t i) {
    kernels.softmax_cross_entropy(stream, kColumns, kVocabulary, 1.0f, true, targets, logits[i],
                                  losses);
  });
  bench.clear();
}

void parameters(Bench& bench, Clockwork& clock) {
  const std::int64_t n = kParameters;
  const auto wide = static_cast<double>(n);
  Kernels& kernels = bench.kernels();
  Stream& stream = *bench.stream;
  const auto random = [&](std::uint64_t seed) {
    const Buffer all = bench.floats(n);
    const Buffer some = bench.upload(noise(1 << 20, seed));
    for (std::int64_t first = 0; first < n; first += 1 << 20) {
      const std::int64_t count = std::min<std::int64_t>(1 << 20, n - first);
      bench.device.copy(stream, all.slice(first, count), some.slice(0, count));
    }
    return all;
  };
  const Buffer g = random(1), p = random(2), m = random(3), v = random(4);
  const Buffer sums = bench.poisoned(DType::kI32, n), guards = bench.poisoned(DType::kI32, n / 256),
               exponents = bench.poisoned(DType::kI32, n / 256);
  bench.device.memset(stream, exponents, 0);
  const Buffer norms =
      bench.poisoned(DType::kF64, (n + kNormChunkElements - 1) / kNormChunkElements);
  clock.bytes("dither_add, 124M", 12 * wide, [&](std::size_t) {
    kernels.dither_add(stream, 27, 4, {7, 9}, exponents, g, sums, guards);
  });
  clock.bytes("quantise_add, 124M", 12 * wide, [&](std::size_t) {
    kernels.quantise_add(stream, 27, 4, exponents, g, sums, guards);
  });
  clock.bytes("dequantise, 124M", 8 * wide,
              [&](std::size_t) { kernels.dequantise(stream, 27, 0.5f, exponents, sums, g); });
  clock.bytes("block exponents, 124M", 4 * wide,
              [&](std::size_t) { kernels.block_exponents(stream, g, guards); });
  clock.bytes("squared norm, 124M", 4 * wide,
              [&](std::size_t) { kernels.squared_norm_chunks(stream, g, norms); });
  const AdamWStep step{.learning_rate = 6e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f};
  clock.bytes("adamw, 124M", 28 * wide,
              [&](std::size_t) { kernels.adamw(stream, step, g, p, m, v); });
  const Buffer integers(g.address(), n, DType::kI32);
  clock.bytes("add_i32, 124M", 12 * wide,
              [&](std::size_t) { kernels.add_i32(stream, integers, sums); });
  clock.bytes("weighted sums, 124M", 4 * wide, [&](std::size_t) {
    kernels.weighted_sums(stream, integers, Buffer(norms.address(), norms.count(), DType::kI64));
  });
  std::vector<float> host(1 << 26);
  clock.bytes("256 MiB to the device, pageable", 4.0 * (1 << 26), [&](std::size_t) {
    bench.device.copy_to_device(stream, g.slice(0, 1 << 26), host.data());
  });
  clock.bytes("256 MiB to the host, pageable", 4.0 * (1 << 26), [&](std::size_t) {
    bench.device.copy_to_host(stream, host.data(), g.slice(0, 1 << 26));
  });
  bench.clear();
}

}  // namespace

void measure(Bench& bench) {
  Clockwork clock(bench);
  ceilings(bench, clock);
  products(bench, clock);
  attention(bench, clock);
  activations(bench, clock);
  parameters(bench, clock);
}

}  // namespace rubato::worker::gpu
