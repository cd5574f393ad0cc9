// Columns of pods: the one-word status takes reading of every container.
#pragma once

#include "apiserver/front/table.h"

namespace rubato::apiserver {

std::vector<Column> pod_columns();

// "Running", "ContainerCreating", "CrashLoopBackOff", "Terminating", "Init:0/1" …
std::string pod_status(const json::Value& pod);

}  // namespace rubato::apiserver
