// JobMachine: no rescale is forgotten, whatever becomes of the operation that made it.
#include "tests/unit/coordinator/fake_pods.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

// The recovery is on record, and all are lost before anybody says that it stands; then the last
// member of its generation comes back, and stands in it.
TEST(JobMachineRescales, OneThatItsLastMemberTellsOfIsCounted) {
  FakePods pods(2);
  pods.start_training();
  ASSERT_EQ(pods.view().rescales, 0u);
  pods.disconnect(1);
  while (!pods.to_write) pods.after(100ms);  // it is lost: a generation of one
  pods.obey_aborts();
  pods.swap_done();
  ASSERT_EQ(pods.machine.record().members.size(), 1u);
  ASSERT_EQ(pods.machine.record().rescales, 1u);
  const auto* form = pods.last(0, wire::WorkerCommand::kForm);
  ASSERT_NE(form, nullptr);
  wire::WorkerStanding& s = pods.standing(0);
  s.set_generation(form->form().generation());
  s.set_phase(wire::WORKER_TRAINING);
  s.set_seq(form->form().base_seq());
  pods.disconnect(0);  // before it says so
  pods.after(5s);
  EXPECT_EQ(pods.view().rescales, 0u);
  pods.connect(0);
  pods.settle();
  pods.after(1s);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.view().generation, form->form().generation());
  EXPECT_EQ(pods.view().rescales, 1u);
  EXPECT_EQ(pods.machine.record().rescales, 1u);
}

}  // namespace
}  // namespace rubato::coordinator
