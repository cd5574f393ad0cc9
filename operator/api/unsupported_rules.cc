#include "operator/api/rule_table.h"

namespace rubato::api {

namespace {

using json::Value;

bool is_auto_or_one(const Value& degree) {
  return degree.is_null() || degree.string_view_or("") == "auto" || degree.int_or(0) == 1;
}

// The field has this word, or is not there. Of a training without a model others speak: it is a
// script's (runtime_rules.cc).
Rule only(const char* id, const char* scope, const std::string& field, const std::string& word,
          const char* message) {
  return {id,
          "TrainingJob",
          scope,
          "!has(self.model) || self." + field + " == '" + word + "'",
          "." + field,
          message,
          false,
          [field, word](const Value& self, const Value&) {
            return self["model"].is_null() || self[field].string_view_or(word) == word;
          }};
}

// The field, which may lie deeper ("affinity.podAffinity"), is not there, or is an empty list.
Rule none(const char* id, const char* scope, const std::string& field, bool is_list,
          const char* message) {
  std::string cel;
  for (std::size_t dot = field.find('.'); dot != std::string::npos; dot = field.find('.', dot + 1))
    cel += "!has(self." + field.substr(0, dot) + ") || ";
  cel += "!has(self." + field + ")";
  if (is_list) cel += " || size(self." + field + ") == 0";
  return {id,
          "TrainingJob",
          scope,
          cel,
          "." + field,
          message,
          false,
          [field, is_list](const Value& self, const Value&) {
            const Value* at = &self;
            std::size_t from = 0;
            for (std::size_t dot = 0; dot != std::string::npos; from = dot + 1) {
              dot = field.find('.', from);
              at = &(*at)[field.substr(from, dot == std::string::npos ? dot : dot - from)];
            }
            return at->is_null() || (is_list && at->size() == 0);
          }};
}

// No container of the list asks for a port of its node.
Rule no_host_ports(const char* id, const std::string& list) {
  return {id,
          "TrainingJob",
          "spec.template.spec",
          "!has(self." + list + ") || self." + list +
              ".all(c, !has(c.ports) || c.ports.all(p, !has(p.hostPort) || p.hostPort == 0))",
          "." + list,
          "two pods with one hostPort cannot share a node, and nobody looks at ports when nodes "
          "are chosen; remove hostPort from its ports, for each pod has an address of its own",
          false,
          [list](const Value& self, const Value&) {
            for (const Value& container : self[list].items())
              for (const Value& port : container["ports"].items())
                if (port["hostPort"].int_or(0) != 0) return false;
            return true;
          }};
}

std::vector<Rule> spec_rules() {
  return {
      {"unsupported-whole-nodes", "TrainingJob", "spec.gpus", "self.shape != 'wholeNodes'",
       ".shape",
       "this release does not give nodes whole; set gpus.shape to any or powersOfTwo, and "
       "gpus.perPod to the GPUs of a node",
       false,
       [](const Value& self, const Value&) {
         return self["shape"].string_view_or("") != "wholeNodes";
       }},
      {"unsupported-mix", "TrainingJob", "spec.accelerators", "!self.mix", ".mix",
       "this release trains on one type of GPU at a time, as exact sums need; set "
       "accelerators.mix to false; accelerators.allow may name several types",
       false, [](const Value& self, const Value&) { return !self["mix"].bool_or(false); }},
  };
}

std::vector<Rule> unsupported_training_rules() {
  return {
      only("unsupported-reduce", "spec.training", "reduce", "exact",
           "this release sums gradients exactly only; set training.reduce to exact"),
      {"unsupported-parallelism", "TrainingJob", "spec.training",
       "!has(self.model) || [self.parallelism.tensor, self.parallelism.pipeline, "
       "self.parallelism.sharding].all(degree, degree == dyn('auto') || degree == dyn(1))",
       ".parallelism",
       "this release splits the batch only, not the model; leave tensor, pipeline and sharding at "
       "auto",
       false,
       [](const Value& self, const Value&) {
         const Value& degrees = self["parallelism"];
         return self["model"].is_null() ||
                (is_auto_or_one(degrees["tensor"]) && is_auto_or_one(degrees["pipeline"]) &&
                 is_auto_or_one(degrees["sharding"]));
       }},
  };
}

// Of the pods: what the scheduler would have to heed and does not, and what the operator says
// itself.
std::vector<Rule> template_rules() {
  constexpr const char* kSpec = "spec.template.spec";
  return {
      none("unsupported-pod-affinity", kSpec, "affinity.podAffinity", false,
           "this release does not place pods near others; remove podAffinity; nodeSelector and "
           "required node affinity say which nodes"),
      none(
          "unsupported-pod-anti-affinity", kSpec, "affinity.podAntiAffinity", false,
          "this release does not keep pods apart; remove podAntiAffinity; gpus.perPod equal to the "
          "GPUs of a node gives each pod a node"),
      none("unsupported-preferred-nodes", kSpec,
           "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution", true,
           "this release has no preferences among nodes; remove it, or say "
           "requiredDuringSchedulingIgnoredDuringExecution"),
      none("unsupported-spread", kSpec, "topologySpreadConstraints", true,
           "this release does not spread pods; remove topologySpreadConstraints"),
      none("unsupported-gates", kSpec, "schedulingGates", true,
           "pods are made when they have their GPUs; remove schedulingGates; spec.suspend holds a "
           "job back"),
      none("unsupported-claims", kSpec, "resourceClaims", true,
           "this release knows no dynamic resource allocation; remove resourceClaims; spec.gpus "
           "asks for GPUs"),
      none("unsupported-node-name", kSpec, "nodeName", false,
           "the scheduler chooses nodes; remove nodeName; nodeSelector says which may be chosen"),
      none("unsupported-scheduler-name", kSpec, "schedulerName", false,
           "Rubato schedules its pods itself; remove schedulerName"),
      none("unsupported-priority-class", kSpec, "priorityClassName", false,
           "the job's class is that of its pods; remove it here and set spec.priorityClassName"),
      none("unsupported-grace", kSpec, "terminationGracePeriodSeconds", false,
           "the job's grace period is that of its pods; remove it here and set "
           "spec.gracePeriodSeconds"),
      {"unsupported-restart", "TrainingJob", kSpec,
       "!has(self.restartPolicy) || self.restartPolicy == 'Never'", ".restartPolicy",
       "the agent starts workers again, and the operator makes new pods; remove restartPolicy",
       false,
       [](const Value& self, const Value&) {
         return self["restartPolicy"].string_view_or("Never") == "Never";
       }},
      {"unsupported-host-network", "TrainingJob", kSpec,
       "!has(self.hostNetwork) || !self.hostNetwork", ".hostNetwork",
       "workers of several jobs share a node, each with ports of its own pod; remove hostNetwork",
       false, [](const Value& self, const Value&) { return !self["hostNetwork"].bool_or(false); }},
      no_host_ports("unsupported-host-port", "containers"),
      no_host_ports("unsupported-init-host-port", "initContainers"),
  };
}

}  // namespace

std::vector<Rule> unsupported_rules() {
  std::vector<Rule> out;
  for (auto part : {spec_rules, unsupported_training_rules, template_rules})
    for (Rule& rule : part()) out.push_back(std::move(rule));
  return out;
}

}  // namespace rubato::api
