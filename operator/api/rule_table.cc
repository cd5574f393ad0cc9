#include "operator/api/rule_table.h"

#include "common/training_limits.h"
#include "operator/api/bounds.h"
#include "operator/api/job_spec.h"
#include "operator/api/resources.h"

#include <algorithm>
#include <array>
#include <bit>

#include <fmt/format.h>

namespace rubato::api {

namespace {

using json::Value;

std::int64_t number(const Value& object, const char* field) { return object[field].int_or(0); }

bool is_multiple(std::int64_t value, std::int64_t of) { return of < 1 || value % of == 0; }

bool is_power_of_two(std::int64_t value) {
  return value > 0 && std::has_single_bit(static_cast<std::uint64_t>(value));
}

// As ^[a-z]([-a-z0-9]*[a-z0-9])?$
bool is_rfc1035(std::string_view name) {
  const auto letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (name.empty() || !letter(name.front()) || name.back() == '-') return false;
  for (const char c : name)
    if (!letter(c) && !digit(c) && c != '-') return false;
  return true;
}

// [1, 2, 4 … 65536]: all that gpus.max can be.
const char* const kPowers =
    "[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]";

std::vector<Rule> name_rules() {
  return {
      {"name-length", "TrainingJob", "", "size(self.metadata.name) <= 48", ".metadata.name",
       "the name is longer than 48 characters, and its pods are called <name>-w<number>; choose a "
       "shorter one",
       false,
       [](const Value& self, const Value&) {
         return self["metadata"]["name"].string_view_or("").size() <= kMaxJobName;
       }},
      {"name-rfc1035", "TrainingJob", "",
       "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')", ".metadata.name",
       "the name must be lower case letters, digits and '-', begin with a letter and end with a "
       "letter or digit, because names of pods and services derive from it",
       false,
       [](const Value& self, const Value&) {
         return is_rfc1035(self["metadata"]["name"].string_view_or(""));
       }},
  };
}

std::vector<Rule> gpu_rules() {
  return {
      {"gpus-min-max", "TrainingJob", "spec.gpus", "self.min <= self.max", ".min",
       "min is larger than max; lower gpus.min or raise gpus.max", false,
       [](const Value& self, const Value&) { return number(self, "min") <= number(self, "max"); }},
      {"gpus-min-per-pod", "TrainingJob", "spec.gpus",
       "self.perPod < 1 || self.min % self.perPod == 0", ".min",
       "min is not a multiple of perPod, and pods are given whole; change gpus.min or gpus.perPod",
       false,
       [](const Value& self, const Value&) {
         return is_multiple(number(self, "min"), number(self, "perPod"));
       }},
      {"gpus-max-per-pod", "TrainingJob", "spec.gpus",
       "self.perPod < 1 || self.max % self.perPod == 0", ".max",
       "max is not a multiple of perPod, and pods are given whole; change gpus.max or gpus.perPod",
       false,
       [](const Value& self, const Value&) {
         return is_multiple(number(self, "max"), number(self, "perPod"));
       }},
      {"gpus-max-pods", "TrainingJob", "spec.gpus",
       fmt::format("self.perPod < 1 || self.max / self.perPod <= {}", kMaxPods), ".max",
       fmt::format("more than {} pods (max / perPod), whose places etcd does not take in one "
                   "object; lower gpus.max or raise gpus.perPod",
                   kMaxPods),
       false,
       [](const Value& self, const Value&) {
         const std::int64_t per_pod = number(self, "perPod");
         return per_pod < 1 || number(self, "max") / per_pod <= kMaxPods;
       }},
      {"gpus-min-power", "TrainingJob", "spec.gpus",
       std::string("self.shape != 'powersOfTwo' || self.min in ") + kPowers, ".min",
       "shape powersOfTwo needs a power of two; change gpus.min, or set gpus.shape to any", false,
       [](const Value& self, const Value&) {
         return self["shape"].string_view_or("") != "powersOfTwo" ||
                is_power_of_two(number(self, "min"));
       }},
      {"gpus-max-power", "TrainingJob", "spec.gpus",
       std::string("self.shape != 'powersOfTwo' || self.max in ") + kPowers, ".max",
       "shape powersOfTwo needs a power of two; change gpus.max, or set gpus.shape to any", false,
       [](const Value& self, const Value&) {
         return self["shape"].string_view_or("") != "powersOfTwo" ||
                is_power_of_two(number(self, "max"));
       }},
      {"gpus-micro-batches", "TrainingJob", "spec",
       "!has(self.training) || self.training.batch.micro < 1 || "
       "self.gpus.max <= self.training.batch.global / self.training.batch.micro",
       ".gpus.max",
       "more GPUs than a step has micro-batches (batch.global / batch.micro), so some would idle; "
       "lower gpus.max or batch.micro, or raise batch.global",
       false,
       [](const Value& self, const Value&) {
         const Value& batch = self["training"]["batch"];
         return number(batch, "micro") < 1 ||
                number(self["gpus"], "max") <= number(batch, "global") / number(batch, "micro");
       }},
  };
}

std::vector<Rule> fault_rules() {
  return {
      {"tolerate-pods", "TrainingJob", "spec",
       "self.gpus.perPod < 1 || self.faultTolerance.tolerate < self.gpus.min / self.gpus.perPod || "
       "self.faultTolerance.tolerate < 1",
       ".faultTolerance.tolerate",
       "with gpus.min GPUs a job has no more pods than this (gpus.min / gpus.perPod), and where "
       "all "
       "are lost nobody holds its state; lower tolerate, or raise gpus.min",
       false,
       [](const Value& self, const Value&) {
         const std::int64_t tolerate = number(self["faultTolerance"], "tolerate");
         const Value& gpus = self["gpus"];
         return number(gpus, "perPod") < 1 || tolerate < 1 ||
                tolerate < number(gpus, "min") / number(gpus, "perPod");
       }},
  };
}

constexpr std::array kOfLlama = {"kvHeads",     "mlpHidden",   "ropeTheta",
                                 "ropeScaling", "normEpsilon", "tieEmbeddings"};
std::string any_of_llama() {
  std::string cel;
  for (const char* field : kOfLlama)
    cel += (cel.empty() ? "has(self." : " || has(self.") + std::string(field) + ")";
  return cel;
}
bool has_of_llama(const Value& model) {
  return std::ranges::any_of(kOfLlama, [&](const char* field) { return !model[field].is_null(); });
}
bool is_llama(const Value& model) { return model["family"].string_view_or("gpt2") == "llama"; }

std::vector<Rule> model_rules() {
  return {
      {"model-preset-and-sizes", "TrainingJob", "spec.training.model",
       "!has(self.preset) || !(has(self.layers) || has(self.hidden) || has(self.heads) || "
       "has(self.vocab))",
       ".preset",
       "a preset already says the sizes; remove model.preset, or remove layers, hidden, heads and "
       "vocab",
       false,
       [](const Value& self, const Value&) {
         return self["preset"].is_null() || (self["layers"].is_null() && self["hidden"].is_null() &&
                                             self["heads"].is_null() && self["vocab"].is_null());
       }},
      {"model-sizes", "TrainingJob", "spec.training.model",
       "has(self.preset) || (has(self.layers) && has(self.hidden) && has(self.heads))", ".preset",
       "the model has no size; set model.preset, or all of layers, hidden and heads", false,
       [](const Value& self, const Value&) {
         return !self["preset"].is_null() ||
                (!self["layers"].is_null() && !self["hidden"].is_null() &&
                 !self["heads"].is_null());
       }},
      {"model-preset-family", "TrainingJob", "spec.training.model",
       "!has(self.preset) || self.preset.startsWith(self.family + '-')", ".preset",
       "the preset is of another family; choose a preset of model.family, or change model.family",
       false,
       [](const Value& self, const Value&) {
         return self["preset"].is_null() ||
                self["preset"].string_or("").starts_with(self["family"].string_or("gpt2") + "-");
       }},
      {"model-heads", "TrainingJob", "spec.training.model",
       "!has(self.hidden) || !has(self.heads) || self.heads < 1 || self.hidden % self.heads == 0",
       ".hidden",
       "hidden is not a multiple of heads, which share it equally; change model.hidden or "
       "model.heads",
       false,
       [](const Value& self, const Value&) {
         return is_multiple(number(self, "hidden"), number(self, "heads"));
       }},
  };
}

std::vector<Rule> llama_rules() {
  return {
      {"model-preset-and-llama", "TrainingJob", "spec.training.model",
       "!has(self.preset) || !(" + any_of_llama() + ")", ".preset",
       "a preset already says the sizes; remove model.preset, or remove kvHeads, mlpHidden, "
       "ropeTheta, ropeScaling, normEpsilon and tieEmbeddings",
       false,
       [](const Value& self, const Value&) {
         return self["preset"].is_null() || !has_of_llama(self);
       }},
      {"model-llama-fields", "TrainingJob", "spec.training.model",
       "self.family == 'llama' || !(" + any_of_llama() + ")", ".family",
       "kvHeads, mlpHidden, ropeTheta, ropeScaling, normEpsilon and tieEmbeddings are of family "
       "llama; remove them, or set model.family to llama",
       false,
       [](const Value& self, const Value&) { return is_llama(self) || !has_of_llama(self); }},
      {"model-llama-mlp", "TrainingJob", "spec.training.model",
       "self.family != 'llama' || has(self.preset) || has(self.mlpHidden)", ".mlpHidden",
       "the MLP has no width; set model.mlpHidden (intermediate_size in a config.json)", false,
       [](const Value& self, const Value&) {
         return !is_llama(self) || !self["preset"].is_null() || !self["mlpHidden"].is_null();
       }},
      {"model-kv-heads", "TrainingJob", "spec.training.model",
       "!has(self.kvHeads) || !has(self.heads) || self.kvHeads < 1 || self.heads % self.kvHeads == "
       "0",
       ".kvHeads",
       "heads is not a multiple of kvHeads, which are shared equally; change model.kvHeads or "
       "model.heads",
       false,
       [](const Value& self, const Value&) {
         return is_multiple(number(self, "heads"), number(self, "kvHeads"));
       }},
      {"model-llama-heads", "TrainingJob", "spec.training.model",
       "self.family != 'llama' || !has(self.hidden) || !has(self.heads) || self.heads < 1 || "
       "self.hidden % (16 * self.heads) == 0",
       ".hidden",
       "a head of family llama has a multiple of 16 elements (hidden / heads); change model.hidden "
       "or model.heads",
       false,
       [](const Value& self, const Value&) {
         return !is_llama(self) || is_multiple(number(self, "hidden"), 16 * number(self, "heads"));
       }},
      {"model-mlp-grain", "TrainingJob", "spec.training.model",
       "!has(self.mlpHidden) || self.mlpHidden % 16 == 0", ".mlpHidden",
       "mlpHidden is not a multiple of 16; change model.mlpHidden", false,
       [](const Value& self, const Value&) { return is_multiple(number(self, "mlpHidden"), 16); }},
      {"rope-frequencies", "TrainingJob", "spec.training.model.ropeScaling",
       "self.highFrequencyFactor > self.lowFrequencyFactor", ".highFrequencyFactor",
       "highFrequencyFactor is not above lowFrequencyFactor; raise it", false,
       [](const Value& self, const Value&) {
         return self["highFrequencyFactor"].double_or(4) > self["lowFrequencyFactor"].double_or(1);
       }},
  };
}

std::vector<Rule> optimizer_rules() {
  return {
      {"learning-rate-min", "TrainingJob", "spec.training.optimizer",
       "self.schedule.minLearningRate <= self.learningRate", ".schedule.minLearningRate",
       "minLearningRate is above learningRate, and a decay goes down; lower it", false,
       [](const Value& self, const Value&) {
         return self["schedule"]["minLearningRate"].double_or(0) <=
                self["learningRate"].double_or(0);
       }},
      {"decay-steps", "TrainingJob", "spec.training.optimizer.schedule",
       "!has(self.decaySteps) || self.decaySteps > self.warmupSteps", ".decaySteps",
       "the decay would end before it begins; raise decaySteps above warmupSteps, or remove it",
       false,
       [](const Value& self, const Value&) {
         return self["decaySteps"].is_null() ||
                number(self, "decaySteps") > number(self, "warmupSteps");
       }},
      {"betas", "TrainingJob", "spec.training.optimizer",
       fmt::format("self.betas.all(beta, beta >= 0.0 && beta <= {})", training::kBetaMost),
       ".betas",
       fmt::format("each beta must be at least 0 and at most {}, such as [0.9, 0.95]",
                   training::kBetaMost),
       false,
       [](const Value& self, const Value&) {
         for (const Value& beta : self["betas"].items())
           if (beta.double_or(0) < 0 || beta.double_or(0) > training::kBetaMost) return false;
         return true;
       }},
      {"warmup-steps", "TrainingJob", "spec.training",
       "self.optimizer.schedule.warmupSteps <= self.stop.steps", ".optimizer.schedule.warmupSteps",
       "the warm-up is longer than the training; lower warmupSteps or raise stop.steps", false,
       [](const Value& self, const Value&) {
         return number(self["optimizer"]["schedule"], "warmupSteps") <=
                number(self["stop"], "steps");
       }},
  };
}

std::vector<Rule> training_rules() {
  return {
      {"batch-micro", "TrainingJob", "spec.training.batch",
       "self.micro < 1 || self.global % self.micro == 0", ".global",
       "global is not a multiple of micro, and a step is made of whole micro-batches; change "
       "batch.global or batch.micro",
       false,
       [](const Value& self, const Value&) {
         return is_multiple(number(self, "global"), number(self, "micro"));
       }},
      {"batch-micro-batches", "TrainingJob", "spec.training.batch",
       fmt::format("self.micro < 1 || self.global / self.micro <= {}", BatchSpec::kMicroBatchesMax),
       ".micro",
       fmt::format("more than {} micro-batches a step (global / micro), which the exact sum of "
                   "gradients cannot hold; raise batch.micro or lower batch.global",
                   BatchSpec::kMicroBatchesMax),
       false,
       [](const Value& self, const Value&) {
         return number(self, "micro") < 1 ||
                number(self, "global") / number(self, "micro") <= BatchSpec::kMicroBatchesMax;
       }},
      {"validation-fraction", "TrainingJob", "spec.training.data",
       fmt::format("self.validationFraction <= {:.1f}", training::kValidationFractionMost),
       ".validationFraction",
       fmt::format("more than half of the data would be kept for validation; give a part of 1, at "
                   "most {:.1f}, such as 0.05 for 5 percent",
                   training::kValidationFractionMost),
       false,
       [](const Value& self, const Value&) {
         return self["validationFraction"].double_or(0) <= training::kValidationFractionMost;
       }},
      {"evaluate-needs-split", "TrainingJob", "spec.training",
       "self.evaluateEvery < 1 || !has(self.data) || self.data.validationFraction > 0.0",
       ".evaluateEvery",
       "there is nothing to evaluate on; set data.validationFraction, such as 0.05, or "
       "evaluateEvery to 0",
       false,
       [](const Value& self, const Value&) {
         return number(self, "evaluateEvery") < 1 || self["data"].is_null() ||
                self["data"]["validationFraction"].double_or(0) > 0;
       }},
  };
}

// Guards against a writer from the past, beside the tests in its own patches.
std::vector<Rule> status_rules() {
  const auto never_back = [](const char* id, const char* scope, const char* field) {
    return Rule{id,
                "TrainingJob",
                scope,
                std::string("self.") + field + " >= oldSelf." + field,
                std::string(".") + field,
                std::string(field) + " never goes back; read the job again and decide again",
                true,
                [field](const Value& self, const Value& old) {
                  return number(self, field) >= number(old, field);
                }};
  };
  return {never_back("epoch-monotone", "status.allocation", "epoch"),
          never_back("ordinal-monotone", "status.allocation", "nextOrdinal"),
          never_back("generation-monotone", "status.membership", "generation"),
          never_back("leader-monotone", "status.membership", "leader")};
}

std::vector<Rule> queue_rules() {
  return {
      {"queue-name-length", "TrainingQueue", "", "size(self.metadata.name) <= 63", ".metadata.name",
       "the name is longer than 63 characters; choose a shorter one", false,
       [](const Value& self, const Value&) {
         return self["metadata"]["name"].string_view_or("").size() <= 63;
       }},
      {"queue-own-parent", "TrainingQueue", "",
       "!has(self.spec.parent) || self.spec.parent != self.metadata.name", ".spec.parent",
       "a queue cannot be a part of itself; name another queue, or remove parent", false,
       [](const Value& self, const Value&) {
         return self["spec"]["parent"].is_null() || self["spec"]["parent"].string_view_or("") !=
                                                        self["metadata"]["name"].string_view_or("");
       }},
      {"namespace-limit-cells", "TrainingQueue", "spec",
       "!has(self.limitsPerNamespace) || size(self.limitsPerNamespace) == 0 || "
       "!has(self.cells) || size(self.cells) == 0",
       ".limitsPerNamespace",
       "a queue with cells has no limits per namespace; remove one of them, or give each namespace "
       "a queue that has this one as parent",
       false,
       [](const Value& self, const Value&) {
         return self["limitsPerNamespace"].size() == 0 || self["cells"].size() == 0;
       }},
      {"quota-limit", "TrainingQueue", "spec.quotas[]",
       "!has(self.limit) || self.guaranteed <= self.limit", ".guaranteed",
       "more is guaranteed than the limit allows; lower guaranteed or raise limit", false,
       [](const Value& self, const Value&) {
         return self["limit"].is_null() || number(self, "guaranteed") <= number(self, "limit");
       }},
  };
}

}  // namespace

std::vector<Rule> rule_table() {
  std::vector<Rule> out;
  for (auto part :
       {name_rules, gpu_rules, runtime_rules, fault_rules, model_rules, llama_rules,
        optimizer_rules, training_rules, word_rules, unsupported_rules, status_rules, queue_rules})
    for (Rule& rule : part()) out.push_back(std::move(rule));
  return out;
}

}  // namespace rubato::api
