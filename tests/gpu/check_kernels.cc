// check_kernels DEVICE [WHAT…]: the kernels of a device, held to the CPU's own and to sums in
// double. WHAT: bits, values, repeats, few-repeats, measure; without it the first two. With
// bf16 the device is opened in that precision, and its products are looked at. Ends with 0, 1 (a
// kernel is wrong) or 77 (there is no such device here).
#include "tests/gpu/suite.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr int kWrong = 1;
constexpr int kNoDevice = 77;

}  // namespace

int main(int argc, char** argv) {
  using namespace rubato::worker;
  const std::string kind = argc > 1 ? argv[1] : "cuda";
  std::vector<std::string> wanted(argv + std::min(argc, 2), argv + argc);
  if (wanted.empty()) wanted = {"bits", "values"};
  const auto precision =
      std::ranges::count(wanted, "bf16") != 0 ? Precision::kBf16 : Precision::kF32;
  auto device = open_device({.kind = kind, .precision = precision});
  if (!device.ok()) {
    std::printf("%s\n", device.error().what().c_str());
    return kNoDevice;
  }
  std::printf("%s: %s\n", (*device)->name().c_str(), (*device)->fingerprint().c_str());
  gpu::Report report;
  {
    gpu::Bench bench(**device);
    for (const std::string& what : wanted) {
      if (what == "bits") {
        gpu::check_bits(bench, report);
        gpu::check_llama(bench, report);
      }
      if (what == "bf16") {
        gpu::check_products(bench, report, precision);
        // The CPU's attention is in f32 all the same.
        gpu::check_attention(bench, report, kind == "cpu" ? Precision::kF32 : precision);
      }
      if (what == "values") gpu::check_values(bench, report);
      if (what == "repeats") gpu::check_repeats(bench, report, gpu::kRepeatsOfGpu);
      if (what == "few-repeats") gpu::check_repeats(bench, report, gpu::kRepeatsOfEmulator);
      if (what == "measure") gpu::measure(bench);
    }
  }
  std::printf("%d failures\n", report.failures());
  return report.failures() == 0 ? 0 : kWrong;
}
