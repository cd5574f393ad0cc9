// Traces as others write them, and as docs/simulate.md describes our own. Text in, jobs out; files
// are the caller's business. Errors name file, line, column and what was expected.
//
// Traces of rigid jobs (Philly, ITP) know a duration and a number of GPUs, no speeds: their jobs
// are not elastic, run on any type alike, and their work is their duration in seconds.
#pragma once

#include "scheduler/sim/trace.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::sched::sim {

struct TraceText {
  std::string file;  // its name, for errors
  std::string_view text;
};

enum class TraceFormat { kRubato, kPhilly, kItp, kPollux, kRubick, kGavel };

// By the header; Gavel's have none, but seven cells between tabs. kInvalid: which are known.
Result<TraceFormat> format_of(const TraceText& trace);

// Our own: docs/simulate.md.
Result<std::vector<TraceJob>> read_rubato(const TraceText& trace);
// timestamp,duration,num_gpus,gpu_time,cluster (Pollux artifact's extract of the Philly trace).
// Time zero is the first timestamp; a virtual cluster is a queue; ids are "philly-" and the line.
Result<std::vector<TraceJob>> read_philly(const TraceText& trace);
// job_id,submission_time,duration,num_gpu (microsoft/elasticflow-traces), seconds. Time zero is the
// first submission.
Result<std::vector<TraceJob>> read_itp(const TraceText& trace);

// What was measured of one application on T4s: folder `traces/<application>` of Pollux' artifact.
struct PolluxProfile {
  TraceText placements;   // placement,local_bsz,step_time,sync_time
  TraceText scalability;  // num_nodes,num_replicas,local_bsz,step_time,sync_time
  std::map<std::int64_t, TraceText> validation;  // by batch size: progress,iteration,…
};
// name,time,application,num_replicas,batch_size (OSDI'21 artifact, AdaptDL branch osdi21-artifact).
// The batch stays what the workload says: work is the iterations that the application needs at it,
// and the speed on n GPUs is that of the tightest placement on nodes of four (for n > 16, of the
// fewest nodes measured), linear in the local batch between two profiled ones; a local batch beyond
// the profile is accumulated in several passes. Elastic from 1 to 64 GPUs.
Result<std::vector<TraceJob>> read_pollux(const TraceText& trace,
                                          const std::map<std::string, PolluxProfile>& profiles);
// The same workloads as Pollux' own simulator plays them: batches adapt (application.h) under
// policies that ask for goodput, and stay what the workload says under the others. Speeds are the
// mean over the epochs, for figures and for policies that are told of work left. Elastic from 1 GPU
// to 64, or what the largest batch can be split on; jobs of ncf have one size and one batch, and
// yolov3 a local batch of 8 at most, as there.
Result<std::vector<TraceJob>> read_pollux_batches(
    const TraceText& trace, const std::map<std::string, PolluxProfile>& profiles);
// name,submission_time,duration,application,num_gpus,num_cpus,bandwidth,exec_plan,steps,is_sla
// (Rubick, MLSys'25, its artifact's `workloads`), seconds; `placements`: by application, what its
// `traces/<application>/placements.csv` says: exec_plan,placement,iter_time, a digit of `placement`
// for the GPUs of each node. Work is `steps`, and takes steps times iter_time: `duration` is passed
// over, for it disagrees. On its own number of GPUs a job has its own plan; an elastic one has the
// best plan that was measured on so many GPUs or fewer, from the fewest to the most that help. Jobs
// of is_sla are in the queue "guaranteed", the others in "best-effort".
Result<std::vector<TraceJob>> read_rubick(const TraceText& trace,
                                          const std::map<std::string, TraceText>& placements);
// The applications that a workload names, so that the caller can fetch their profiles.
Result<std::vector<std::string>> applications_in(const TraceText& trace);

// By model and GPUs.
struct GavelSpeeds {
  template <class T>
  using Of = std::map<std::string, std::map<Gpus, T>>;
  // Steps a second by GPU type, of a job that has its GPUs for itself and near each other.
  Of<std::map<std::string, double>> alone;
  // Beside each other model on as many GPUs. The time for which it keeps a GPU busy is half of what
  // a pair with itself takes of it; of its memory the table says nothing.
  Of<SharingProfile> sharing;
};
// simulation_throughputs.json of stanford-futuredata/gavel (OSDI'20). Jobs that are spread over
// nodes and rates of 0 alone are passed over; a pair with a rate of 0 did not fit.
Result<GavelSpeeds> read_gavel_speeds(const TraceText& table);
bool is_gavel_trace(const TraceText& trace);
// Its traces, without a header: model, command, argument, flag, steps, submission in seconds, GPUs.
// Rigid, on the types on which the table has its model with as many GPUs: maybe none, and then no
// cluster can hold it. Jobs of one model share what is measured of them. Ids are "gavel-" and the
// line.
Result<std::vector<TraceJob>> read_gavel(const TraceText& trace, const GavelSpeeds& speeds);

}  // namespace rubato::sched::sim
