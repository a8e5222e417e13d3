// Runs a compiled step, one verb at a time. A whole training program, without data loading:
//
//   const Artifact artifact = *load_artifact("step.ptx");     // what gaccc wrote
//   const auto device = open_device("cpu", {}, artifact).take();
//   Session session(*device, artifact.plan);
//   session.open(artifact);
//   session.init(/*seed=*/7, /*lr=*/1e-3);
//   for (const Batch& batch : data) {
//     session.step(batch.inputs, batch.samples);            // one micro-batch, one launch
//     if (session.launches() == artifact.plan.accumulate) session.update();  // its loss, norm, ...
//   }
//   save_safetensors("weights.safetensors", *session.parameters());
//
// Every verb returns a Status or a Result; after an error the session is of no further use. One thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/plan.h"
#include "runtime/ranks/rank_sums.h"
#include "runtime/reports.h"
#include "runtime/safetensors.h"

namespace gacc {

// The bytes of a micro-batch, one block an input, in the plan's order, f32 or i32; what lies in the arena as
// half (PlanInput::stored) is rounded here.
using InputBytes = std::span<const std::span<const std::byte>>;

// What --save and --load carry: parameters, and the running statistics of batch_norm.
bool is_saved(const PlanBuffer& buffer);

// Whether training cannot go on after a window: a gradient was not finite, and no window, or none more, may
// be left out; and the sentence about it. `what`: was found of the gradients, where more is known than the
// report says.
bool ends_training(const Plan& plan, const WindowReport& report);
std::string why_training_ends(const Plan& plan, const WindowReport& report, std::string what = "");

class Session {
 public:
  // Both must outlive the session.
  Session(Device& device, const Plan& plan) : device_(device), plan_(plan) {
    set_lanes({0, plan.lanes}, nullptr);
  }

  // Once: checks that the plan has the buffers a session needs, and loads the artifact on the device. Waits.
  Status open(const Artifact& artifact);
  // The lanes that this session runs; all, unless it is told. Before `open`, which says whether the artifact
  // has room for their nodes. `exchange` must outlive the session.
  void set_lanes(LaneRange mine, RankExchange* exchange);
  // Whether the window's launch of that position is this session's; and one that is not, which counts all the
  // same. Neither waits.
  bool has_launch(int64_t position) const;
  Status skip(int64_t samples, int64_t next_ordinal);
  // Fills the parameters from the seed and clears everything else. Does not wait.
  Status init(uint64_t seed, float lr);
  // Forward and backward of `samples` samples (1 to micro_batch); adds to the window. Does not wait.
  Status step(InputBytes inputs, int64_t samples);
  // After the window's last step: adds the sums of its lanes, over all ranks. `update` does it itself.
  Status finish_lanes();
  // Ends the window with one optimizer update, or, when nothing in it was counted, without one: then only
  // running statistics move. Waits.
  Result<WindowReport> update();
  // Ends the window without an update: its sums are set to zero. Does not wait.
  Status drop_window();

  // Sets the evaluation's sums to zero, adds micro-batches to them, and reads them. Only the last one waits,
  // and the first one of a lane. `launches`: how many there will be, by which they are dealt to lanes; 0: one lane.
  Status begin_eval(int64_t launches = 0);
  Status eval(InputBytes inputs, int64_t samples);
  // As has_launch and skip, of the evaluation.
  bool has_eval(int64_t position) const;
  Status skip_eval(int64_t samples);
  Result<EvalReport> end_eval();
  int64_t eval_samples() const { return eval_samples_; }  // of an evaluation that has not ended
  // Predicts 1 to predict.batch samples; only those inputs are looked at that predict reads. Does not wait.
  Status run_predict(InputBytes inputs, int64_t samples);
  // Some of the outputs, from number `first` on; where they come in parts, this runs those parts. Waits.
  Status read_outputs(int64_t first, std::span<float> outputs);

  // The window so far. All wait.
  int64_t launches() const { return launches_; }
  int64_t samples() const { return samples_; }
  Result<WindowSums> sums();
  // The mean gradient (sum / count, unscaled) of every trained parameter, under the parameter's name, sorted
  // by name; zeros when nothing was counted.
  Result<std::vector<NamedTensor>> mean_gradients();

  // The ordinal of the next sample since training began, where the model has random numbers for samples (else
  // nothing happens). Steps count what they see; this is for samples that no step sees. Does not wait.
  Status set_ordinal(int64_t ordinal);

  // The first parameter (plan order) whose accumulated gradient is not finite; empty when all are.
  Result<std::string> first_bad_parameter();

  // For checkpoints: a buffer of the plan as it is (waits), and put back, as a whole where ranks share it
  // (then all must call this); and, once all are put back, how far the window was. The buffers are what a
  // session keeps; the rest is in this call.
  Result<std::vector<std::byte>> read_buffer(const PlanBuffer& buffer);
  // As a checkpoint keeps it. With several lanes that is how the open window began: what is summed is no
  // more than part of a tree.
  Result<std::vector<std::byte>> read_for_checkpoint(const PlanBuffer& buffer);
  Status write_buffer(const PlanBuffer& buffer, std::span<const std::byte> bytes);
  void resume_window(int64_t launches, int64_t samples) {
    launches_ = launches;
    samples_ = samples;
  }
  // One f32 (float) or i32 (int32_t) of the plan's state, by name: for what only some models have. Reading
  // waits.
  template <class T>
  Result<T> read_state(std::string_view name);
  template <class T>
  Status write_state(std::string_view name, T value);

  // The parameters as f32, sorted by name. Waits.
  Result<std::vector<NamedTensor>> parameters();
  // Overwrites elements of a parameter (or statistic) and of its half copy, from number `first` on.
  Status write_parameter(const PlanBuffer& parameter, int64_t first, std::span<const float> values);

 private:
  Result<const PlanBuffer*> find_state(std::string_view name) const;
  Status set_shift(InputBytes inputs);
  Status write_inputs(InputBytes inputs, int64_t samples, Program program);
  Result<float> read_scale(std::string_view name);
  Result<std::vector<float>> read_floats(const PlanBuffer& buffer);
  Result<std::vector<float>> read_sum(const PlanBuffer& buffer);
  Status find_nodes();
  Status begin_launch();
  Status close_lane(const LaneStack::Close& close, std::span<const LaneRange> nodes);
  void forget_window();
  std::vector<int64_t> node_offsets(const PlanBuffer& sum) const;
  Result<std::vector<double>> add_nodes(std::span<const PlanBuffer* const> buffers,
                                        std::vector<LaneScalars> nodes, RankExchange* exchange);
  Status clear_eval();
  int64_t eval_lane(int64_t position) const;
  Status end_eval_lane();
  Status next_eval(InputBytes inputs, int64_t samples);
  bool is_whole() const;
  // Of what ranks share.
  Status find_shared();
  const PlanBuffer* slice_of(const PlanBuffer& buffer) const;
  int64_t rank() const;
  Status copy_own(const SharedBytes& from, int64_t to);
  Status write_part(const PlanBuffer& buffer, int64_t first, std::span<const std::byte> bytes);
  Status run_update();
  Status zero(int64_t offset, int64_t bytes);
  template <class T>
  Status write_scalar(const PlanBuffer* buffer, T value);
  template <class T>
  Result<std::vector<T>> read_all(int64_t offset, int64_t count);

  Device& device_;
  const Plan& plan_;
  std::map<std::string_view, const PlanBuffer*> by_name_;
  std::vector<std::vector<uint16_t>> halves_;  // by input: what is written of it, where that is half
  int64_t launches_ = 0, samples_ = 0;         // of the window
  // With several lanes.
  LaneRange mine_;
  RankExchange* exchange_ = nullptr;
  LaneStack stack_;
  std::vector<const PlanBuffer*> join_, keep_;  // the flags of `close`, by place
  // Of the sums that a launch keeps a part of: what the later lanes keep of a node, by place.
  std::map<const PlanBuffer*, std::vector<const PlanBuffer*>> kept_;
  const PlanBuffer* rest_ = nullptr;
  std::map<const PlanBuffer*, std::vector<const PlanBuffer*>> nodes_;  // of a sum, by place
  std::map<const PlanBuffer*, std::vector<std::byte>> opening_;        // scalars as the window found them
  // Where ranks share the optimizer's state: by role of the whole, and parameters with masters.
  std::map<BufferRole, std::vector<SharedBytes>> shared_;
  std::map<const PlanBuffer*, const PlanBuffer*> slices_;  // by the whole: its slice or master
  bool scattered_ = false;                                 // those of gradients have the sum of the window
  int64_t eval_samples_ = 0, eval_launches_ = 0, eval_expected_ = 0;
  std::vector<const PlanBuffer*> eval_sums_, window_sums_;  // the latter: loss, count, weights if there are
  std::vector<LaneScalars> eval_nodes_;                     // of the lanes that are done
};

}  // namespace gacc
