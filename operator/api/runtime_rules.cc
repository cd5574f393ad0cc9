// What each runtime needs, and what it does not read.
#include "operator/api/codec.h"
#include "operator/api/job_spec.h"
#include "operator/api/rule_table.h"
#include "operator/api/worker_container.h"

#include <algorithm>

namespace rubato::api {

namespace {

using json::Value;

std::string_view runtime_of(const Value& spec) {
  return spec["runtime"].string_view_or(name_of(Runtime::kBuiltin));
}

// Its steps are Rubato's: it reads training.
bool is_stepped(const Value& spec) {
  return runtime_of(spec) == "builtin" || runtime_of(spec) == "pytorch";
}

bool has_command(const Value& pod_spec) {
  const auto& containers = pod_spec["containers"].items();
  if (containers.empty()) return true;  // refused for that
  return containers[worker_container(pod_spec)]["command"].size() > 0;
}

std::vector<Rule> program_rules() {
  return {
      {"runtime-needs-command", "TrainingJob", "spec",
       "self.runtime == 'builtin' || (self.template.spec.containers.exists(c, c.name == 'worker') "
       "? "
       "self.template.spec.containers.exists(c, c.name == 'worker' && has(c.command) && "
       "size(c.command) > 0) : has(self.template.spec.containers[0].command) && "
       "size(self.template.spec.containers[0].command) > 0)",
       ".template",
       "runtimes pytorch, torchrun and command run the command of the container \"worker\" (else "
       "of the first); add command to it, for what its image would start is not known here",
       false,
       [](const Value& self, const Value&) {
         return runtime_of(self) == "builtin" || has_command(self["template"]["spec"]);
       }},
      {"runtime-command-rigid", "TrainingJob", "spec",
       "self.runtime != 'command' || self.gpus.min == self.gpus.max", ".gpus.max",
       "a program of runtime command keeps its number of processes; set gpus.min and gpus.max to "
       "the same, or set spec.runtime to torchrun if it can begin again with another",
       false,
       [](const Value& self, const Value&) {
         return runtime_of(self) != "command" ||
                self["gpus"]["min"].int_or(0) == self["gpus"]["max"].int_or(0);
       }},
      {"runtime-tolerates-nothing", "TrainingJob", "spec",
       "self.runtime in ['builtin', 'pytorch'] || self.faultTolerance.tolerate < 1",
       ".faultTolerance.tolerate",
       "a program of runtimes torchrun and command begins again from its own checkpoint whenever a "
       "pod is lost; set faultTolerance.tolerate to 0",
       false,
       [](const Value& self, const Value&) {
         return is_stepped(self) || self["faultTolerance"]["tolerate"].int_or(0) < 1;
       }},
      {"runtime-needs-training", "TrainingJob", "spec",
       "!(self.runtime in ['builtin', 'pytorch']) || has(self.training)", ".training",
       "runtimes builtin and pytorch need to know what to train; add spec.training", false,
       [](const Value& self, const Value&) {
         return !is_stepped(self) || !self["training"].is_null();
       }},
      {"runtime-without-training", "TrainingJob", "spec",
       "self.runtime in ['builtin', 'pytorch'] || !has(self.training)", ".training",
       "only runtimes builtin and pytorch read training; remove spec.training, or set spec.runtime "
       "to one of them",
       false,
       [](const Value& self, const Value&) {
         return is_stepped(self) || self["training"].is_null();
       }},
  };
}

Rule builtin_needs(const std::string& field, const char* message) {
  return {"training-needs-" + field,
          "TrainingJob",
          "spec",
          "self.runtime != 'builtin' || !has(self.training) || has(self.training." + field + ")",
          ".training." + field,
          message,
          false,
          [field](const Value& self, const Value&) {
            return runtime_of(self) != "builtin" || self["training"].is_null() ||
                   !self["training"][field].is_null();
          }};
}

// CEL for: the field is what the server fills in; what it fills in nowhere is not there.
std::string is_untouched(const std::string& self, const FieldSchema& field) {
  if (!field.default_value) return "!has(" + self + ")";
  if (field.type.object == nullptr) return self + " == " + json::dump(*field.default_value);
  std::string all;
  for (const FieldSchema& inner : field.type.object->fields())
    all += (all.empty() ? "" : " && ") + is_untouched(self + "." + inner.name, inner);
  return all;
}

// Of training, or of `part` of it. Who leaves a field out is given its default: only another value
// says anything.
Rule script_leaves(const std::string& part, const ObjectSchema& schema, const std::string& field,
                   const char* message) {
  const FieldSchema& described = *schema.find(field);
  const std::string path = part.empty() ? field : part + "." + field;
  return {"pytorch-without-" + field,
          "TrainingJob",
          "spec",
          "self.runtime != 'pytorch' || !has(self.training) || (" +
              is_untouched("self.training." + path, described) + ")",
          ".training." + path,
          message,
          false,
          [part, field, initial = described.default_value](const Value& self, const Value&) {
            if (runtime_of(self) != "pytorch") return true;
            const Value& training = self["training"];
            const Value& value = part.empty() ? training[field] : training[part][field];
            return value.is_null() || (initial && is_same(value, *initial));
          }};
}

std::vector<Rule> runtime_training_rules() {
  const ObjectSchema& training = TrainingSpec::schema();
  return {
      builtin_needs("model",
                    "runtime builtin needs a network to train; add training.model, such as "
                    "preset: gpt2-demo"),
      builtin_needs("data",
                    "runtime builtin needs something to learn; add training.data, with the path "
                    "of a file or folder of tokens"),
      script_leaves("", training, "model",
                    "a script of runtime pytorch makes its model; remove training.model, or set "
                    "spec.runtime to builtin"),
      script_leaves("", training, "data",
                    "a script of runtime pytorch has its own dataset; remove training.data, or set "
                    "spec.runtime to builtin"),
      script_leaves("", training, "optimizer",
                    "a script of runtime pytorch makes its optimizer and its schedule; remove "
                    "training.optimizer"),
      script_leaves("", training, "precision",
                    "a script of runtime pytorch says what it computes in, as by torch.autocast; "
                    "remove training.precision"),
      script_leaves("", training, "parallelism",
                    "runtime pytorch splits the batch only, not the model; remove "
                    "training.parallelism"),
      script_leaves("", training, "reduce",
                    "runtime pytorch sums gradients exactly only; remove training.reduce"),
      script_leaves("batch", BatchSpec::schema(), "sequenceLength",
                    "a script of runtime pytorch says how long its samples are; remove "
                    "batch.sequenceLength"),
  };
}

}  // namespace

std::vector<Rule> runtime_rules() {
  std::vector<Rule> out = program_rules();
  for (Rule& rule : runtime_training_rules()) out.push_back(std::move(rule));
  return out;
}

}  // namespace rubato::api
