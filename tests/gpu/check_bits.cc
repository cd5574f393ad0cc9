// What must give the bits of the CPU's own kernels (worker/backend/cpu, compiled for AVX2), on
// drawn values and on those that break things: NaN, infinities, subnormals, zero blocks, overflow.
#include "tests/gpu/suite.h"
#include "worker/backend/cpu/float_mode.h"
#include "worker/backend/cpu/ops.h"

#include <cmath>
#include <limits>

namespace rubato::worker::gpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const cpu::Ops& ops() { return cpu::ops_avx2(); }

// Values of all sizes, with some that break things.
Floats wild(std::size_t n, std::uint64_t seed) {
  Draw draw(seed);
  Floats out(n);
  for (float& x : out)
    x = static_cast<float>((2 * draw.unit() - 1) *
                           std::ldexp(1.0, static_cast<int>(draw.below(60)) - 50));
  constexpr float kSpecial[] = {0.0f, -0.0f, 1e-42f, -3e-39f, kInfinity, -kInfinity, kNan, 3e38f};
  for (std::size_t i = 0; i < std::min(n, std::size(kSpecial)); ++i)
    out[draw.below(n)] = kSpecial[i];
  return out;
}

void gelu_and_add(Bench& bench, Report& report) {
  for (const std::size_t n : {1u, 3u, 203u, 4101u, 1u << 20}) {
    report.begin("elementwise " + std::to_string(n));
    const Floats x = n < 300 ? noise(n, n, 9) : wild(n, n), dy = wild(n, n + 1);
    Floats y(n), gradient = dy, sum(n);
    {
      const cpu::FloatMode mode;
      ops().gelu_forward(count(x), x.data(), y.data());
      ops().gelu_backward(count(x), x.data(), gradient.data());
      ops().add(count(x), x.data(), dy.data(), sum.data());
    }
    const Buffer in = bench.upload(x), out = bench.floats(count(x)), both = bench.upload(dy);
    bench.kernels().gelu_forward(*bench.stream, in, out);
    report.same(bench.read(out), y, "gelu");
    bench.kernels().add(*bench.stream, in, both, out);
    report.same(bench.read(out), sum, "add");
    bench.kernels().gelu_backward(*bench.stream, in, both);
    report.same(bench.read(both), gradient, "gelu's gradient");
    // Not aligned to 16 bytes.
    if (n > 4) {
      const Buffer shifted = bench.floats(count(x));
      bench.kernels().gelu_forward(*bench.stream, in.slice(1, count(x) - 1),
                                   shifted.slice(1, count(x) - 1));
      report.same(
          bench.read(shifted.slice(1, count(x) - 1)),
          [&] {
            Floats part(n - 1);
            const cpu::FloatMode mode;
            ops().gelu_forward(count(x) - 1, x.data() + 1, part.data());
            return part;
          }(),
          "gelu of a shifted range");
    }
    bench.clear();
  }
  report.line("gelu, add");
}

void add_integers(Bench& bench, Report& report) {
  for (const std::size_t n : {1u, 5u, 100003u}) {
    report.begin("add_i32 " + std::to_string(n));
    Draw draw(n);
    Ints from(n), to(n);
    for (auto& x : from) x = static_cast<std::int32_t>(draw.next());
    for (auto& x : to) x = static_cast<std::int32_t>(draw.next());
    const Buffer a = bench.upload(from), b = bench.upload(to);
    bench.kernels().add_i32(*bench.stream, a, b);
    ops().add_i32(static_cast<std::int64_t>(n), from.data(), to.data());
    report.same(bench.read_ints(b), to, "sums");
    bench.clear();
  }
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{77}, std::int64_t{517},
                               kNormChunkElements, 5 * kNormChunkElements + 201}) {
    report.begin("weighted_sums " + text(n));
    Draw draw(size(n));
    Ints x(size(n));
    for (auto& each : x) each = static_cast<std::int32_t>(draw.next());
    const std::int64_t chunks = (n + kNormChunkElements - 1) / kNormChunkElements;
    std::vector<std::int64_t> want(size(chunks)), got(size(chunks));
    ops().weighted_sums(n, kNormChunkElements, x.data(), want.data());
    const Buffer out = bench.poisoned(DType::kI64, chunks);
    bench.kernels().weighted_sums(*bench.stream, bench.upload(x), out);
    bench.device.copy_to_host(*bench.stream, got.data(), out);
    report.expect(bench.stream->synchronize().ok() && got == want, "the sums differ");
    bench.clear();
  }
  report.line("add_i32, weighted sums");
}

void adamw(Bench& bench, Report& report) {
  for (const std::size_t n : {1u, 77u, 1u << 18}) {
    report.begin("adamw " + std::to_string(n));
    const Floats g = wild(n, 1), p = noise(n, 2), m = noise(n, 3, 0.1);
    Floats v = wild(n, 4);
    for (float& x : v) x = std::abs(x);
    const AdamWStep step{.learning_rate = 6e-4f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .epsilon = 1e-8f,
                         .weight_decay = 0.1f,
                         .first_correction = 0.271f,
                         .second_correction = 0.3776f,
                         .gradient_scale = 0.37f};
    const Buffer parameters = bench.upload(p), first = bench.upload(m), second = bench.upload(v);
    bench.kernels().adamw(*bench.stream, step, bench.upload(g), parameters, first, second);
    Floats want_p = p, want_m = m, want_v = v;
    {
      const cpu::FloatMode mode;
      ops().adamw(count(g),
                  {step.learning_rate, step.beta1, step.beta2, step.epsilon, step.weight_decay,
                   step.first_correction, step.second_correction, step.gradient_scale},
                  g.data(), want_p.data(), want_m.data(), want_v.data());
    }
    report.same(bench.read(parameters), want_p, "parameters");
    report.same(bench.read(first), want_m, "exp_avg");
    report.same(bench.read(second), want_v, "exp_avg_sq");
    bench.clear();
  }
  report.line("adamw");
}

// Gradients near the exponents of their blocks, some too large, some not finite, some zero.
struct ExactInput {
  Floats gradient;
  Ints exponents;
};
ExactInput exact_input(std::size_t blocks, std::uint64_t seed) {
  Draw draw(seed);
  ExactInput in{Floats(blocks * 256), Ints(blocks)};
  for (std::size_t b = 0; b < blocks; ++b) {
    in.exponents[b] = static_cast<std::int32_t>(draw.below(181)) - 90;
    const std::uint64_t kind = draw.below(12);
    const double top = std::ldexp(1.0, in.exponents[b] + (kind == 1 ? 6 : -2));
    for (std::size_t i = 0; i < 256; ++i) {
      const double small =
          draw.below(4) == 0 ? std::ldexp(1.0, -static_cast<int>(draw.below(30))) : 1;
      in.gradient[b * 256 + i] =
          kind == 0 || kind == 6 ? 0.0f : static_cast<float>((2 * draw.unit() - 1) * top * small);
    }
    float& one = in.gradient[b * 256 + draw.below(256)];
    if (kind == 2) one = kNan;
    if (kind == 3) one = -kInfinity;
    if (kind == 4) one = 1e-41f;
    if (kind == 6) one = std::numeric_limits<float>::min();
    if (kind == 5) one = static_cast<float>(-std::ldexp(1.0, in.exponents[b] + 4));  // 2^31 exactly
  }
  return in;
}

void exact_sums(Bench& bench, Report& report) {
  constexpr int kFraction = 27;
  for (const std::size_t blocks : {1u, 3u, 7u, 1000u}) {
    report.begin("exact reduction of " + std::to_string(blocks) + " blocks");
    const std::int64_t n = static_cast<std::int64_t>(blocks) * 256;
    Ints sums(size(n), 3), guards(blocks, 1);
    const Buffer device_sums = bench.upload(sums), device_guards = bench.upload(guards);
    for (std::uint64_t micro = 0; micro < 4; ++micro) {
      const ExactInput in = exact_input(blocks, 10 * blocks + micro);
      const int shift = micro % 2 == 0 ? 4 : 12;
      const Dither dither{.key = 0x1234567 * micro + 5,
                          .offset = static_cast<std::uint32_t>(micro) << 30};
      const Buffer g = bench.upload(in.gradient), e = bench.upload(in.exponents);
      const cpu::FloatMode mode;
      if (micro == 3) {
        ops().quantise_add(n, kFraction, shift, in.exponents.data(), in.gradient.data(),
                           sums.data(), guards.data());
        bench.kernels().quantise_add(*bench.stream, kFraction, shift, e, g, device_sums,
                                     device_guards);
      } else {
        ops().dither_add(n, {kFraction, shift, dither.key, dither.offset}, in.exponents.data(),
                         in.gradient.data(), sums.data(), guards.data());
        bench.kernels().dither_add(*bench.stream, kFraction, shift, dither, e, g, device_sums,
                                   device_guards);
      }
      report.same(bench.read_ints(device_sums), sums, "sums");
      report.same(bench.read_ints(device_guards), guards, "guards");
      Floats back(size(n));
      ops().dequantise(n, kFraction, 0.125f, in.exponents.data(), sums.data(), back.data());
      const Buffer out = bench.floats(n);
      bench.kernels().dequantise(*bench.stream, kFraction, 0.125f, e, device_sums, out);
      report.same(bench.read(out), back, "dequantised");
      Ints found(blocks);
      ops().block_exponents(n, Kernels::kZeroExponent, in.gradient.data(), found.data());
      const Buffer exponents = bench.poisoned(DType::kI32, static_cast<std::int64_t>(blocks));
      bench.kernels().block_exponents(*bench.stream, g, exponents);
      report.same(bench.read_ints(exponents), found, "exponents");
    }
    bench.clear();
  }
  report.line("quantise, dither, dequantise");
}

void norms(Bench& bench, Report& report) {
  for (const std::int64_t n :
       {std::int64_t{256}, kNormChunkElements, 5 * kNormChunkElements + 768}) {
    report.begin("squared_norm_chunks " + text(n));
    const Floats x = noise(size(n), 7, 3);
    const std::int64_t chunks = (n + kNormChunkElements - 1) / kNormChunkElements;
    Wide want(size(chunks));
    {
      const cpu::FloatMode mode;
      ops().squared_norm_chunks(n, kNormChunkElements, x.data(), want.data());
    }
    const Buffer out = bench.poisoned(DType::kF64, chunks);
    bench.kernels().squared_norm_chunks(*bench.stream, bench.upload(x), out);
    report.expect(bench.read_wide(out) == want, "the sums differ");
    bench.clear();
  }
  report.line("squared norm");
}

void embedding(Bench& bench, Report& report) {
  struct Shape {
    std::int64_t batch, length, hidden, vocabulary;
  };
  for (const Shape s :
       {Shape{3, 7, 70, 11}, {1, 1, 5, 3}, {2, 64, 48, 257}, {8, 256, 768, 50257}}) {
    report.begin("embedding " + text(s.batch) + " x " + text(s.length) + " x " + text(s.hidden));
    const std::int64_t rows = s.batch * s.length;
    const Ints ids = tokens(size(rows), static_cast<std::uint64_t>(s.vocabulary), 1);
    const Floats table = noise(size(s.vocabulary * s.hidden), 2);
    const Floats positions = noise(size(s.length * s.hidden), 3);
    const Floats dout = noise(size(rows * s.hidden), 4);
    Floats out(size(rows * s.hidden)), dtable = noise(table.size(), 5),
                                       dpositions(positions.size());
    const Buffer device_ids = bench.upload(ids), device_out = bench.floats(count(out));
    const Buffer token_gradient = bench.upload(dtable),
                 position_gradient = bench.floats(count(dpositions));
    bench.kernels().embed_forward(*bench.stream, s.length, s.hidden, device_ids,
                                  bench.upload(table), bench.upload(positions), device_out);
    const Buffer work =
        bench.poisoned(DType::kI32, bench.kernels().embed_workspace(rows, s.vocabulary));
    bench.kernels().embed_backward(*bench.stream, s.length, s.hidden, s.vocabulary, device_ids,
                                   bench.upload(dout), work, token_gradient, position_gradient);
    {
      const cpu::FloatMode mode;
      Ints workspace(size(s.vocabulary + 1 + rows));
      ops().embed_forward(rows, s.length, s.hidden, ids.data(), table.data(), positions.data(),
                          out.data());
      ops().embed_backward(rows, s.length, s.hidden, s.vocabulary, ids.data(), dout.data(),
                           workspace.data(), dtable.data(), dpositions.data());
    }
    report.same(bench.read(device_out), out, "rows");
    report.same(bench.read(token_gradient), dtable, "gradient of tokens");
    report.same(bench.read(position_gradient), dpositions, "gradient of positions");
    bench.clear();
  }
  report.line("embedding");
}

void layernorm(Bench& bench, Report& report) {
  for (const std::int64_t c : {1, 5, 15, 16, 17, 31, 32, 33, 40, 48, 60, 192, 768, 1000}) {
    constexpr std::int64_t kRows = 37;
    report.begin("layernorm of " + text(c));
    const Floats x = noise(size(kRows * c), 1, 3), other = noise(size(kRows * c), 2);
    const Floats weight = noise(size(c), 3), bias = noise(size(c), 4),
                 before = noise(size(kRows * c), 5);
    Floats y(x.size()), sum(x.size()), mean(kRows), rstd(kRows), dx = before, dweight(size(c)),
                                                                 dbias(size(c));
    Floats plain(x.size());
    {
      const cpu::FloatMode mode;
      ops().layernorm_forward(kRows, c, 1e-5f, x.data(), nullptr, weight.data(), bias.data(),
                              nullptr, plain.data(), mean.data(), rstd.data());
      ops().layernorm_forward(kRows, c, 1e-5f, x.data(), other.data(), weight.data(), bias.data(),
                              sum.data(), y.data(), mean.data(), rstd.data());
      ops().layernorm_backward(kRows, c, sum.data(), weight.data(), mean.data(), rstd.data(),
                               other.data(), dx.data(), dweight.data(), dbias.data());
    }
    const Buffer a = bench.upload(x), b = bench.upload(other), w = bench.upload(weight),
                 to = bench.upload(bias);
    const Buffer out = bench.floats(count(x)), means = bench.floats(kRows),
                 rstds = bench.floats(kRows);
    bench.kernels().layernorm_forward(*bench.stream, c, 1e-5f, a, w, to, out, means, rstds);
    report.same(bench.read(out), plain, "y");
    bench.kernels().add_layernorm_forward(*bench.stream, c, 1e-5f, a, b, w, to, a, out, means,
                                          rstds);  // the sum in place
    report.same(bench.read(a), sum, "sum");
    report.same(bench.read(out), y, "y of the sum");
    report.same(bench.read(means), mean, "mean");
    report.same(bench.read(rstds), rstd, "rstd");
    const Buffer gradient = bench.upload(before);
    const Buffer weights = bench.floats(c), biases = bench.floats(c);
    bench.kernels().layernorm_backward(*bench.stream, c, a, w, means, rstds, b, gradient, weights,
                                       biases);
    report.same(bench.read(gradient), dx, "gradient of x");
    bench.clear();
  }
  report.line("layernorm");
}

}  // namespace

void check_bits(Bench& bench, Report& report) {
  gelu_and_add(bench, report);
  add_integers(bench, report);
  adamw(bench, report);
  exact_sums(bench, report);
  norms(bench, report);
  embedding(bench, report);
  layernorm(bench, report);
}

}  // namespace rubato::worker::gpu
