// The tables of Pollux' artifact, with all of their columns. Private to this folder.
#pragma once

#include "scheduler/sim/application.h"
#include "scheduler/sim/import/csv.h"
#include "scheduler/sim/import/importers.h"

#include <string>
#include <vector>

namespace rubato::sched::sim {

// A table that has these columns and no others.
inline Result<Csv> pollux_table(const TraceText& text, const std::vector<std::string>& columns) {
  TRY(Csv csv, Csv::parse(text.file, text.text, columns));
  TRY_OK(csv.require(columns));
  return csv;
}

inline Result<Csv> pollux_workload(const TraceText& text) {
  return pollux_table(text, {"name", "time", "application", "num_replicas", "batch_size"});
}

inline Result<Csv> pollux_placements(const TraceText& text) {
  return pollux_table(text, {"placement", "local_bsz", "step_time", "sync_time"});
}

inline Result<Csv> pollux_scalability(const TraceText& text) {
  return pollux_table(text, {"num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"});
}

constexpr double kPolluxBatchMost = 100'000'000;

// A row of the placements or of the scalability.
inline Result<MeasuredStep> pollux_step(const CsvRow& row) {
  MeasuredStep step;
  TRY(step.local_batch, row.number("local_bsz", 1, kPolluxBatchMost));
  TRY(step.step_s, row.number("step_time", 1e-9, kSecondsMax));
  TRY(step.sync_s, row.number("sync_time", 0, step.step_s));
  return step;
}

// Of one batch; at least one row. `needed`: those of its columns that it must have.
inline Result<Csv> pollux_epochs(const TraceText& text, const std::vector<std::string>& needed) {
  TRY(Csv csv, Csv::parse(text.file, text.text,
                          {"progress", "iteration", "metric", "grad_sqr", "grad_var"}));
  TRY_OK(csv.require(needed));
  if (csv.size() == 0)
    return Error(Code::kInvalid, text.file + ":2: expected a row for each epoch");
  return csv;
}

}  // namespace rubato::sched::sim
