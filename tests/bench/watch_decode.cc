// What the read side of kube costs: decoding one Pod event, following a watch over
// loopback (plain and TLS), and keeping pods and jobs in a store.
//
//   build/bench/bin/watch_decode [--events N] [--pods N] [--jobs N]
//
// The pod is 3.5 KB, as a real one: managedFields, environment, conditions.
#include "common/metrics.h"
#include "kube/objects/object.h"
#include "kube/objects/pod.h"
#include "kube/rest_client.h"
#include "kube/rest_transport.h"
#include "kube/store.h"
#include "tests/unit/kube/scripted_server.h"

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <malloc.h>
#include <sys/resource.h>

namespace rubato::kube {
namespace {

std::string pod_text(int index) {
  const std::string i = std::to_string(index);
  std::string env;
  for (int e = 0; e < 12; ++e)
    env += fmt::format(R"({}{{"name":"VARIABLE_{}","value":"value of the variable {}"}})",
                       e == 0 ? "" : ",", e, e);
  std::string fields;
  for (int f = 0; f < 30; ++f)
    fields += fmt::format(R"({}"f:field-number-{}":{{"f:nested":{{}}}})", f == 0 ? "" : ",", f);
  return fmt::format(
      R"({{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"job-{0}-worker-3","namespace":"team-{1}",)"
      R"("uid":"6c8f3a52-0000-4000-8000-{2:012d}","resourceVersion":"{3}","generation":1,)"
      R"("creationTimestamp":"2026-11-21T07:38:29Z","labels":{{"rubato.dev/job":"job-{0}",)"
      R"("rubato.dev/index":"3","app.kubernetes.io/managed-by":"rubato"}},"annotations":)"
      R"({{"rubato.dev/epoch":"7","other.example/note":"not kept"}},"ownerReferences":[{{)"
      R"("apiVersion":"rubato.dev/v1alpha1","kind":"TrainingJob","name":"job-{0}",)"
      R"("uid":"7c8f3a52-0000-4000-8000-{2:012d}","controller":true,"blockOwnerDeletion":true}}],)"
      R"("finalizers":["rubato.dev/gpu"],"managedFields":[{{"manager":"rubato-operator",)"
      R"("operation":"Update","apiVersion":"v1","time":"2026-11-21T07:38:29Z","fieldsV1":{{{5}}}}}]}},)"
      R"("spec":{{"containers":[{{"name":"worker","image":"registry.example/rubato-worker:1",)"
      R"("env":[{4}],"resources":{{"limits":{{"nvidia.com/gpu":"8","memory":"64Gi"}},"requests":)"
      R"({{"cpu":"16","memory":"64Gi","nvidia.com/gpu":"8"}}}}}}],"nodeName":"node-{1}",)"
      R"("schedulerName":"rubato","tolerations":[{{"key":"nvidia.com/gpu","operator":"Exists",)"
      R"("effect":"NoSchedule"}},{{"key":"node.kubernetes.io/not-ready","operator":"Exists",)"
      R"("effect":"NoExecute","tolerationSeconds":300}}],"volumes":[{{"name":"data",)"
      R"("persistentVolumeClaim":{{"claimName":"data"}}}}]}},"status":{{"phase":"Running",)"
      R"("podIP":"10.1.2.3","hostIP":"192.168.1.7","startTime":"2026-11-21T07:38:30Z","conditions":[)"
      R"({{"type":"PodScheduled","status":"True","lastTransitionTime":"2026-11-21T07:38:29Z"}},)"
      R"({{"type":"Initialized","status":"True","lastTransitionTime":"2026-11-21T07:38:30Z"}},)"
      R"({{"type":"ContainersReady","status":"True","lastTransitionTime":"2026-11-21T07:38:35Z"}},)"
      R"({{"type":"Ready","status":"True","lastTransitionTime":"2026-11-21T07:38:35Z"}}],)"
      R"("containerStatuses":[{{"name":"worker","ready":true,"restartCount":0,"imageID":)"
      R"("registry.example/rubato-worker@sha256:0123456789abcdef0123456789abcdef","state":)"
      R"({{"running":{{"startedAt":"2026-11-21T07:38:34Z"}}}}}}]}}}})",
      i, index % 50, index, 100000 + index, env, fields);
}

std::string job_text(int index) {
  return fmt::format(
      R"({{"apiVersion":"rubato.dev/v1alpha1","kind":"TrainingJob","metadata":{{"name":"job-{0}",)"
      R"("namespace":"team-{1}","uid":"7c8f3a52-0000-4000-8000-{0:012d}","resourceVersion":"{2}"}},)"
      R"("spec":{{"queue":"research","gpus":{{"min":2,"max":64,"perPod":8,"shape":"any"}},)"
      R"("runtime":"builtin","training":{{"model":{{"family":"gpt2","preset":"gpt2-124m"}},)"
      R"("data":{{"path":"/data/tokens"}},"batch":{{"global":512,"micro":8,"sequenceLength":1024}},)"
      R"("optimizer":{{"name":"adamw","learningRate":0.0006}},"stop":{{"steps":20000}},)"
      R"("precision":"bf16","checkpoint":{{"every":500,"path":"/ckpt","keep":3}}}},"template":{{)"
      R"("spec":{{"containers":[{{"name":"worker","image":"x"}}]}}}}}},"status":{{"state":"Running",)"
      R"("conditions":[{{"type":"Queued","status":"True","reason":"Admitted"}},{{"type":"Allocated",)"
      R"("status":"True","reason":"Placed"}},{{"type":"Running","status":"True","reason":"Ready"}}],)"
      R"("allocation":{{"epoch":7,"gpus":16,"nodes":[{{"name":"node-1","gpus":8}},{{"name":)"
      R"("node-2","gpus":8}}]}},"membership":{{"generation":9}},"progress":{{"step":8000,)"
      R"("steps":20000,"loss":3.18}}}}}})",
      index, index % 50, 200000 + index);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

long resident_bytes() {
  malloc_trim(0);
  std::ifstream in("/proc/self/statm");
  long total = 0;
  long resident = 0;
  in >> total >> resident;
  return resident * 4096;
}

template <class Step>
void measure(const std::string& what, int count, Step step) {
  const double start = cpu_seconds();
  for (int i = 0; i < count; ++i) step(i);
  const double each = (cpu_seconds() - start) / count;
  fmt::print("{:<44} {:8.2f} µs  {:>9.0f} /s\n", what, each * 1e6, 1 / each);
}

void decode(int events) {
  const std::string text = pod_text(7);
  const std::string line = R"({"type":"MODIFIED","object":)" + text + "}";
  fmt::print("pod of {} bytes, CPU time of one core\n", text.size());
  measure("split a watch line", events, [&](int) { CHECK(parse_watch_line(line).ok()); });
  measure("Pod from bytes (simdjson)", events, [&](int) { CHECK(Pod::decode_raw(text).ok()); });
  measure("line, Pod, store", events, [&](int) {
    static Store<Pod> store;
    const auto event = parse_watch_line(line);
    auto pod = Pod::decode_raw(event->raw);
    store.put(std::make_shared<const Pod>(std::move(pod).value()));
  });
  measure("Pod by json::Value", events / 10,
          [&](int) { CHECK(Pod::decode(json::parse(text).value()).ok()); });
}

// CPU time counts both ends: the server of this program only copies (and encrypts).
void watch(int events, bool tls) {
  std::string body;
  for (int i = 0; i < 64; ++i) body += R"({"type":"MODIFIED","object":)" + pod_text(i) + "}\n";
  const std::string block = chunk(body);
  const WallTime now = SystemClock().wall();
  const auto authority = net::make_authority("bench", now - 1h, now + 1h).value();
  net::CertificateRequest request;
  request.common_name = "server";
  request.ip_addresses = {"127.0.0.1"};
  request.not_before = now - 1h;
  request.not_after = now + 1h;
  const auto identity = tls ? net::issue_certificate(authority, request).value() : net::KeyPair{};
  ScriptedServer server(
      [&](ScriptedServer::Connection& connection) {
        (void)connection.read_request();
        connection.write(chunked_head());
        for (int i = 0; i < events / 64; ++i) connection.write(block);
        connection.write(last_chunk());
      },
      identity);
  ThreadExecutor executor;
  Metrics metrics;
  RestConfig config;
  config.server =
      (tls ? "https://127.0.0.1:" : "http://127.0.0.1:") + std::to_string(server.port());
  config.credentials.authority.text = authority.certificate;
  const auto client = RestClient::make(config, executor, metrics).value();
  auto stream = client->watch(types::kPod, "", {}).value();
  const MonoTime start = executor.now();
  int count = 0;
  for (;; ++count) {
    const auto event = stream->next(executor.now() + 60s);
    if (!event.ok()) break;
    CHECK(Pod::decode_raw(event->raw).ok());
  }
  const double seconds = std::chrono::duration<double>(executor.now() - start).count();
  fmt::print("{:<44} {:8.2f} µs  {:>9.0f} /s  (wall, server beside it)\n",
             tls ? "watch over TLS, decoded" : "watch over TCP, decoded", seconds / count * 1e6,
             count / seconds);
}

template <class T, class Make>
void keep(const char* what, int count, Store<T>& store, Make make) {
  const long before = resident_bytes();
  for (int i = 0; i < count; ++i) store.put(std::make_shared<const T>(make(i)));
  const long after = resident_bytes();
  fmt::print("{:<44} {:8.1f} MiB  {:>7} bytes each\n", what,
             static_cast<double>(after - before) / (1 << 20), (after - before) / count);
}

int run(int argc, char** argv) {
  int events = 200000;
  int pods = 5000;
  int jobs = 1000;
  CLI::App app("What the read side of kube costs");
  app.add_option("--events", events, "events to decode");
  app.add_option("--pods", pods, "pods to keep");
  app.add_option("--jobs", jobs, "jobs to keep");
  CLI11_PARSE(app, argc, argv);
  Store<Pod> pod_store;
  Store<Object> job_store;
  // Before anything else, so that the heap has no holes to fill.
  keep(fmt::format("{} pods in the store", pods).c_str(), pods, pod_store,
       [](int i) { return Pod::decode_raw(pod_text(i)).value(); });
  keep(fmt::format("{} jobs in the store (whole objects)", jobs).c_str(), jobs, job_store,
       [](int i) { return Object::decode(json::parse(job_text(i)).value()).value(); });
  decode(events);
  watch(events, false);
  watch(events, true);
  return 0;
}

}  // namespace
}  // namespace rubato::kube

int main(int argc, char** argv) { return rubato::kube::run(argc, argv); }
