#include "scheduler/snapshot/read_parts.h"

#include "scheduler/snapshot/snapshot.h"

namespace rubato::sched {
namespace {

constexpr double kBusyLeast = 1e-6;
constexpr double kTrafficMost = 1e15;

}  // namespace

void read_storage(JsonCursor& document, ClusterState& state) {
  document.object("storage", false, [&](JsonCursor& c) {
    state.storage.emplace();
    state.storage->cache_bytes = c.whole("cacheBytes", 0, kAmountMost);
    state.storage->remote_bytes_per_second = c.whole("remoteBytesPerSecond", 0, kAmountMost);
  });
}

void read_total(JsonCursor& of_node, Node& node) {
  of_node.object("total", false, [&](JsonCursor& c) {
    node.total.emplace();
    node.total->cpu = c.whole("milliCpu", 0, kWholeMost);
    node.total->memory = c.whole("memoryBytes", 0, kWholeMost);
  });
}

void read_needs(JsonCursor& of_job, Job& job) {
  of_job.object("gpuUse", false, [&](JsonCursor& use) {
    job.gpu_use.emplace();
    job.gpu_use->busy = use.number("busy", kBusyLeast, 1);
    job.gpu_use->memory = use.whole("memoryBytes", 0, kAmountMost, 0);
    job.gpu_use->beside_another = use.number("besideAnother", 0, 1, 0);
  });
  job.traffic = of_job.number("trafficBytesPerSecond", 0, kTrafficMost, 0);
  of_job.each("sensitivity", kTypesMost, false, [&](const json::Value& v, const Path& p) {
    JsonCursor c(v, p, of_job.trouble());
    SensitivityPoint& point = job.sensitivity.emplace_back();
    point.per_gpu.cpu = c.whole("milliCpu", 1, kWholeMost);
    point.per_gpu.memory = c.whole("memoryBytes", 1, kWholeMost);
    point.part = c.number("part", 0, 1);
    c.end();
  });
  of_job.object("dataset", false, [&](JsonCursor& c) {
    job.dataset.emplace();
    job.dataset->name = c.text("name", 1, kIdBytes);
    job.dataset->bytes = c.whole("bytes", 1, kAmountMost);
    job.dataset->bytes_per_second = c.whole("bytesPerSecond", 1, kAmountMost);
  });
}

}  // namespace rubato::sched
