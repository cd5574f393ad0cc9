#include "operator/control/worker_pod.h"

#include "tests/unit/control/fixtures.h"

namespace rubato::control {
namespace {

api::AllocatedPod third() {
  api::AllocatedPod pod;
  pod.name = "job-w3";
  pod.ordinal = 3;
  pod.node = "n1";
  pod.gpus = 1;
  return pod;
}

TEST(WorkerPod, CarriesWhatTheAgentNeeds) {
  const auto object = job(1, 2);
  const json::Value made = worker_pod(object->job, third(), config());
  EXPECT_EQ(made["metadata"]["name"].string_or(""), "job-w3");
  EXPECT_EQ(made["metadata"]["ownerReferences"][0]["uid"].string_or(""), "job-uid-1");
  const json::Value& spec = made["spec"];
  EXPECT_EQ(spec["schedulerName"].string_or(""), "rubato");
  EXPECT_EQ(spec["restartPolicy"].string_or(""), "Never");
  EXPECT_FALSE(spec["automountServiceAccountToken"].bool_or(true));
  EXPECT_TRUE(spec["nodeName"].is_null());
  const json::Value& container = spec["containers"][0];
  EXPECT_EQ(container["command"][0].string_or(""), "rubato-agent");
  EXPECT_EQ(container["resources"]["limits"]["rubato.dev/slot"].string_or(""), "1");
  EXPECT_EQ(container["resources"]["requests"]["cpu"].string_or(""), "500m");
  bool found = false;
  for (const auto& env : container["env"].items()) {
    if (env["name"].string_or("") != "RUBATO_COORDINATORS") continue;
    found = true;
    EXPECT_EQ(env["value"].string_or(""), "127.0.0.1:1,127.0.0.1:2");
  }
  EXPECT_TRUE(found);
}

TEST(WorkerPod, HasThePriorityClassThatWasTried) {
  const auto class_of = [](const json::Value& pod) {
    return pod["spec"]["priorityClassName"].string_or("none");
  };
  const char* high = R"("priorityClassName":"high")";
  const auto untried = job(1, 2, "", high);
  EXPECT_EQ(class_of(worker_pod(untried->job, third(), config())), "high");
  const auto changed = job(1, 2, R"("priority":{"className":"low","value":-5})", high);
  EXPECT_EQ(class_of(worker_pod(changed->job, third(), config())), "low");
  EXPECT_EQ(class_of(sample_pod(changed->job, config())), "high") << "it is tried with";
  const auto removed = job(1, 2, R"("priority":{"className":"low","value":-5})");
  EXPECT_EQ(class_of(sample_pod(removed->job, config())), "none");
}

TEST(WorkerPod, ShowsMetricsWhereAPortIsSet) {
  const auto object = job(1, 2);
  const auto worker = [&](int port) {
    Config c = config();
    c.worker_metrics_port = port;
    return worker_pod(object->job, third(), c)["spec"]["containers"][0];
  };
  EXPECT_TRUE(worker(0)["ports"].is_null());
  EXPECT_EQ(worker(9400)["env"].size(), worker(0)["env"].size() + 1);
  EXPECT_EQ(worker(9400)["ports"][0]["containerPort"].int_or(0), 9400);
  EXPECT_EQ(worker(9400)["ports"][0]["name"].string_or(""), "rubato-metrics") << "of PodMonitors";
  std::string told;
  const json::Value shown = worker(9400);  // outlives what the loop refers to
  for (const auto& env : shown["env"].items())
    if (env["name"].string_or("") == "RUBATO_METRICS_PORT") told = env["value"].string_or("");
  EXPECT_EQ(told, "9400");
}

TEST(WorkerPod, WhatItComputesOnIsSaidByTheImageOrTheTemplate) {
  const auto device = [](const api::TrainingJob& job) {
    std::string said;
    const json::Value made = worker_pod(job, third(), config());
    for (const auto& env : made["spec"]["containers"][0]["env"].items())
      if (env["name"].string_or("") == "RUBATO_DEVICE") said += env["value"].string_or("");
    return said;
  };
  const auto object = job(1, 2);
  EXPECT_EQ(device(object->job), "");
  api::TrainingJob told = object->job;
  told.spec.pod_template.at("spec")
      .at("containers")
      .at(0)
      .set("env", parse(R"([{"name":"RUBATO_DEVICE","value":"cpu"}])"));
  EXPECT_EQ(device(told), "cpu");
  told.spec.pod_template.at("spec").set(
      "containers", parse(R"([{"name":"log","image":"l:1"},{"name":"worker","image":"w:2"}])"));
  EXPECT_EQ(worker_image(told), "w:2");
}

TEST(WorkerPod, HasWhatTheInstallationSaysWhereItsTemplateIsSilent) {
  Config c = config();
  c.worker_runtime_class = "nvidia";
  c.worker_shared_memory = "8Gi";
  const auto object = job(1, 2);
  const json::Value made = worker_pod(object->job, third(), c)["spec"];
  EXPECT_EQ(made["runtimeClassName"].string_or(""), "nvidia");
  const std::string text = json::dump(made);
  EXPECT_NE(text.find(R"({"name":"rubato-shm","emptyDir":{"medium":"Memory","sizeLimit":"8Gi"}})"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(R"({"name":"rubato-shm","mountPath":"/dev/shm"})"), std::string::npos);

  api::TrainingJob own = object->job;
  json::Value& spec = own.spec.pod_template.at("spec");
  spec.set("runtimeClassName", "kata");
  spec.at("volumes").push_back(parse(R"({"name":"mine","emptyDir":{}})"));
  spec.at("containers")
      .at(0)
      .at("volumeMounts")
      .push_back(parse(R"({"name":"mine","mountPath":"/dev/shm"})"));
  const json::Value kept = worker_pod(own, third(), c)["spec"];
  EXPECT_EQ(kept["runtimeClassName"].string_or(""), "kata");
  EXPECT_EQ(json::dump(kept).find("rubato-shm"), std::string::npos);
}

TEST(WorkerPod, AProgramOfOnesOwnIsTheAgentsToStart) {
  for (const api::Runtime runtime : {api::Runtime::kPytorch, api::Runtime::kTorchrun}) {
    JobObject object = *job(1, 2);
    object.job.spec.runtime = runtime;
    json::Value& container =
        object.job.spec.pod_template.at("spec").at("containers").at(std::size_t{0});
    container.set("command", json::Value::array({"python3"}));
    container.set("args", json::Value::array({"train.py", "--lr=\"1\""}));
    const json::Value made = worker_pod(object.job, third(), config());
    const json::Value& worker = made["spec"]["containers"][0];
    EXPECT_EQ(json::dump(worker["command"]), R"(["rubato-agent"])");
    EXPECT_TRUE(worker["args"].is_null());
    std::map<std::string, std::string> env;
    for (const auto& one : worker["env"].items())
      env[one["name"].string_or("")] = one["value"].string_or("");
    EXPECT_EQ(env["RUBATO_COMMAND"], R"(["python3","train.py","--lr=\"1\""])");
    EXPECT_EQ(env["RUBATO_RUNTIME"], api::name_of(runtime));
    EXPECT_EQ(env["RUBATO_MAX_RESTARTS"], "10");
  }
}

// The agent leaves in order in the time that the kubelet gives it.
TEST(WorkerPod, TellsTheAgentItsGracePeriod) {
  const auto object = job(1, 2);
  api::TrainingJob slow = object->job;
  slow.spec.grace_period_seconds = 300;
  const json::Value spec = worker_pod(slow, third(), config())["spec"];
  EXPECT_EQ(spec["terminationGracePeriodSeconds"].int_or(0), 300);
  std::string told;
  for (const auto& env : spec["containers"][0]["env"].items())
    if (env["name"].string_or("") == "RUBATO_GRACE_SECONDS") told = env["value"].string_or("");
  EXPECT_EQ(told, "300");
}

Result<JobObject> job_with(const std::string& pod_template) {
  json::Value value = parse(
      R"({"metadata":{"name":"job","namespace":"ns","uid":"u"},"spec":{"gpus":{"min":1,"max":2}}})");
  value.at("spec").set("template", parse(pod_template));
  return JobObject::decode(value);
}

// What a template, or a container of it, says; and where that is wrong, with what is wanted there.
using Fault = std::pair<std::string, std::string>;

std::vector<Fault> faults_of_a_container() {
  return {{R"("env":{"FOO":"bar"})", ".env: must be a list"},
          {R"("volumeMounts":{})", ".volumeMounts: must be a list"},
          {R"("ports":9400)", ".ports: must be a list"},
          {R"("resources":"1")", ".resources: must be an object"},
          {R"("resources":{"limits":[]})", ".resources.limits: must be an object"},
          {R"("resources":{"requests":"1"})", ".resources.requests: must be an object"},
          {R"("securityContext":"x")", ".securityContext: must be an object"},
          {R"("securityContext":{"capabilities":[]})",
           ".securityContext.capabilities: must be an object"}};
}

std::vector<Fault> faults_of_a_template() {
  std::vector<Fault> faults = {
      {R"("all")", ": must be an object"},
      {R"({"metadata":"x"})", ".metadata: must be an object"},
      {R"({"metadata":{"labels":[]}})", ".metadata.labels: must be an object"},
      {R"({"metadata":{"annotations":1}})", ".metadata.annotations: must be an object"},
      {R"({"spec":[]})", ".spec: must be an object"},
      {R"({"spec":{"containers":{"name":"worker"}}})", ".spec.containers: must be a list"},
      {R"({"spec":{"containers":[null]}})", ".spec.containers[0]: must be an object"}};
  const auto beside = [&](const std::string& part, const std::string& where) {
    faults.emplace_back(R"({"spec":{"containers":[{"name":"worker"}],)" + part + "}}",
                        ".spec" + where);
  };
  beside(R"("volumes":{})", ".volumes: must be a list");
  beside(R"("volumes":["x"])", ".volumes[0]: must be an object");
  beside(R"("securityContext":"x")", ".securityContext: must be an object");
  beside(R"("initContainers":{})", ".initContainers: must be a list");
  beside(R"("initContainers":["x"])", ".initContainers[0]: must be an object");
  for (const auto& [part, where] : faults_of_a_container()) {
    beside(R"("initContainers":[{"name":"a"},{)" + part + "}]", ".initContainers[1]" + where);
    faults.emplace_back(R"({"spec":{"containers":[{"name":"worker","image":"x",)" + part + "}]}}",
                        ".spec.containers[0]" + where);
  }
  return faults;
}

// The API server keeps unknown fields of a template, and checks none of them.
TEST(WorkerPod, ATemplateThatItCannotWriteIntoIsUnreadable) {
  for (const auto& [pod_template, where] : faults_of_a_template()) {
    const auto object = job_with(pod_template);
    ASSERT_TRUE(object.ok()) << object.error().to_string();
    EXPECT_EQ(object->job.unreadable, "spec.template" + where) << pod_template;
    EXPECT_TRUE(object->problem.starts_with(object->job.unreadable)) << object->problem;
    EXPECT_TRUE(object->job.spec.pod_template.is_null()) << pod_template;
    EXPECT_EQ(object->job.spec.gpus.max, 2) << "the rest of its spec is read";
    const json::Value pod = sample_pod(object->job, config());
    EXPECT_TRUE(pod["spec"]["containers"].is_null()) << pod_template;
    EXPECT_EQ(worker_image(object->job), "");
  }
}

TEST(WorkerPod, WhatATemplateSaysIsNullIsAsIfItWereNotThere) {
  Config c = config();
  c.worker_metrics_port = 9400;
  c.worker_shared_memory = "8Gi";
  const auto object = job_with(
      R"({"metadata":null,"spec":{"volumes":null,"securityContext":null,"initContainers":null,
          "containers":[{"name":"worker","image":"x","env":null,"volumeMounts":null,"ports":null,
            "resources":{"limits":null},"securityContext":{"capabilities":null}}]}})");
  ASSERT_TRUE(object.ok()) << object.error().to_string();
  EXPECT_EQ(object->job.unreadable, "");
  const json::Value pod = sample_pod(object->job, c);
  const json::Value& worker = pod["spec"]["containers"][0];
  EXPECT_EQ(worker["ports"].size(), 1U);
  EXPECT_EQ(worker["resources"]["limits"].size(), 1U);
  EXPECT_EQ(json::dump(worker["securityContext"]["capabilities"]), R"({"drop":["ALL"]})");
}

TEST(WorkerPod, SameInputSamePod) {
  const auto object = job(1, 2);
  EXPECT_EQ(worker_pod(object->job, third(), config()), worker_pod(object->job, third(), config()));
}

// A job that was accepted by an older release is not run otherwise than it says.
TEST(JobObject, NamesWhatThisReleaseRefuses) {
  EXPECT_EQ(job(1, 2)->problem, "");
  const std::string problem = job(1, 2, "", R"("accelerators":{"mix":true})")->problem;
  EXPECT_NE(problem.find("spec.accelerators.mix: this release"), std::string::npos) << problem;
}

TEST(WorkerPod, WhatKeepsItFromStartingIsTheKubeletsWord) {
  const auto problem = [](const std::string& phase, const std::string& state) {
    const auto decoded = kube::Pod::decode(parse(
        R"({"metadata":{"name":"p","namespace":"ns","uid":"u"},"spec":{},"status":{"phase":")" +
        phase + R"(","containerStatuses":[{"name":"worker","state":{)" + state + "}}]}}"));
    EXPECT_TRUE(decoded.ok());
    return start_problem(*decoded);
  };
  const std::string no_image = R"("waiting":{"reason":"ImagePullBackOff","message":"x"})";
  EXPECT_EQ(problem("Pending", no_image), "ImagePullBackOff");
  EXPECT_EQ(problem("Pending", R"("waiting":{"reason":"ContainerCreating"})"), "");
  EXPECT_EQ(problem("Running", R"("running":{})"), "");
  EXPECT_EQ(problem("Failed", no_image), "");
}

}  // namespace
}  // namespace rubato::control
