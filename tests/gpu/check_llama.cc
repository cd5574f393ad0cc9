// The kernels that came with Llama: bits of the CPU's own kernels, but for the sums over rows and
// attention with fewer key heads, which check_values.cc holds to plain sums.
#include "tests/gpu/suite.h"
#include "worker/backend/cpu/float_mode.h"
#include "worker/backend/cpu/ops.h"

namespace rubato::worker::gpu {

namespace {

const cpu::Ops& ops() { return cpu::ops_avx2(); }

void rmsnorm(Bench& bench, Report& report) {
  for (const std::int64_t c : {1, 5, 15, 16, 17, 31, 32, 33, 40, 48, 60, 192, 768, 1000}) {
    constexpr std::int64_t kRows = 37;
    report.begin("RMSNorm of " + text(c));
    const Floats x = noise(size(kRows * c), 1, 3), other = noise(size(kRows * c), 2);
    const Floats weight = noise(size(c), 3), before = noise(size(kRows * c), 5);
    Floats plain(x.size()), y(x.size()), sum(x.size()), rstd(kRows), dx = before, dweight(size(c));
    {
      const cpu::FloatMode mode;
      ops().rmsnorm_forward(kRows, c, 1e-5f, x.data(), nullptr, weight.data(), nullptr,
                            plain.data(), rstd.data());
      ops().rmsnorm_forward(kRows, c, 1e-5f, x.data(), other.data(), weight.data(), sum.data(),
                            y.data(), rstd.data());
      ops().rmsnorm_backward(kRows, c, sum.data(), weight.data(), rstd.data(), other.data(),
                             dx.data(), dweight.data());
    }
    const Buffer a = bench.upload(x), b = bench.upload(other), w = bench.upload(weight);
    const Buffer out = bench.floats(count(x)), rstds = bench.floats(kRows);
    bench.kernels().rmsnorm_forward(*bench.stream, c, 1e-5f, a, w, out, rstds);
    report.same(bench.read(out), plain, "y");
    bench.kernels().add_rmsnorm_forward(*bench.stream, c, 1e-5f, a, b, w, a, out, rstds);
    report.same(bench.read(a), sum, "sum");  // in place
    report.same(bench.read(out), y, "y of the sum");
    report.same(bench.read(rstds), rstd, "rstd");
    const Buffer gradient = bench.upload(before), weights = bench.floats(c);
    bench.kernels().rmsnorm_backward(*bench.stream, c, a, w, rstds, b, gradient, weights);
    report.same(bench.read(gradient), dx, "gradient of x");
    report.close(bench.read(weights), widen(dweight), 2e-6, "gradient of the weight");
    bench.clear();
  }
  report.line("RMSNorm");
}

void swiglu(Bench& bench, Report& report) {
  for (const std::int64_t width : {1, 3, 4, 37, 64, 1000}) {
    constexpr std::int64_t kRows = 19;
    report.begin("SwiGLU of " + text(width));
    Floats x = noise(size(kRows * 2 * width), 1, 9);
    x[0] = 100;
    x[size(2 * width)] = -100;
    const Floats dy = noise(size(kRows * width), 2);
    Floats y(dy.size()), dx(x.size());
    {
      const cpu::FloatMode mode;
      ops().swiglu_forward(kRows, width, x.data(), y.data());
      ops().swiglu_backward(kRows, width, x.data(), dy.data(), dx.data());
    }
    const Buffer in = bench.upload(x), out = bench.floats(count(y)),
                 gradient = bench.floats(count(x));
    bench.kernels().swiglu_forward(*bench.stream, width, in, out);
    report.same(bench.read(out), y, "y");
    bench.kernels().swiglu_backward(*bench.stream, width, in, bench.upload(dy), gradient);
    report.same(bench.read(gradient), dx, "gradient");
    bench.clear();
  }
  report.line("SwiGLU");
}

void rotation(Bench& bench, Report& report) {
  for (RotaryShape s : {RotaryShape{.length = 3, .heads = 1, .head_size = 2, .columns = 2},
                        {.length = 7, .heads = 3, .head_size = 6, .columns = 23},
                        {.length = 5, .heads = 2, .head_size = 8, .columns = 18},
                        {.length = 65, .heads = 6, .head_size = 64, .columns = 512}}) {
    report.begin("rotation of " + text(s.heads) + " heads of " + text(s.head_size));
    const std::int64_t rows = 2 * s.length;
    const Floats angles = noise(size(s.length * s.head_size), 1);
    Floats x = noise(size(rows * s.columns), 2);
    const Buffer there = bench.upload(x), turns = bench.upload(angles);
    for (const bool is_inverse : {false, true}) {
      s.is_inverse = is_inverse;
      const cpu::FloatMode mode;
      ops().rotate({rows, s.length, s.heads, s.head_size, s.columns, is_inverse}, angles.data(),
                   x.data());
      bench.kernels().rotate(*bench.stream, s, turns, there);
      report.same(bench.read(there), x, "x");
    }
    bench.clear();
  }
  report.line("rotation");
}

void tokens_alone(Bench& bench, Report& report) {
  constexpr std::int64_t kRows = 96, kHidden = 70, kVocabulary = 11;
  report.begin("embedding without positions");
  const Ints ids = tokens(kRows, kVocabulary, 1);
  const Floats table = noise(kVocabulary * kHidden, 2), dout = noise(kRows * kHidden, 3);
  Floats out(dout.size()), dtable = noise(table.size(), 4);
  const Buffer device_ids = bench.upload(ids), rows = bench.floats(count(out)),
               gradient = bench.upload(dtable);
  const Buffer work =
      bench.poisoned(DType::kI32, bench.kernels().embed_workspace(kRows, kVocabulary));
  bench.kernels().embed_forward(*bench.stream, 48, kHidden, device_ids, bench.upload(table), {},
                                rows);
  bench.kernels().embed_backward(*bench.stream, 48, kHidden, kVocabulary, device_ids,
                                 bench.upload(dout), work, gradient, {});
  {
    const cpu::FloatMode mode;
    Ints workspace(kVocabulary + 1 + kRows);
    ops().embed_forward(kRows, 48, kHidden, ids.data(), table.data(), nullptr, out.data());
    ops().embed_backward(kRows, 48, kHidden, kVocabulary, ids.data(), dout.data(), workspace.data(),
                         dtable.data(), nullptr);
  }
  report.same(bench.read(rows), out, "rows");
  report.same(bench.read(gradient), dtable, "gradient of tokens");
  bench.clear();
  report.line("embedding without positions");
}

}  // namespace

void check_llama(Bench& bench, Report& report) {
  rmsnorm(bench, report);
  swiglu(bench, report);
  rotation(bench, report);
  tokens_alone(bench, report);
}

}  // namespace rubato::worker::gpu
