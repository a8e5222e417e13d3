// Runs a compiled step, one verb at a time. A whole training program, without data loading:
//
//   const Artifact artifact = *open_artifact("step.ptx");     // what gaccc wrote
//   const auto device = open_device("cpu", {}, artifact).take();
//   Session session(*device, artifact.plan);
//   session.open(artifact);
//   session.init(/*seed=*/7, /*lr=*/1e-3);
//   for (const Batch& batch : data) {
//     session.step(batch.inputs, batch.samples);            // one micro-batch, one launch
//     if (session.window().launches() == artifact.plan.accumulate) session.update();  // its loss, ...
//   }
//   save_safetensors("weights.safetensors", *session.parameters());
//
// Every verb returns a Status or a Result; after an error the session is of no further use. One thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/blocks.h"
#include "runtime/no_copy.h"
#include "runtime/reports.h"
#include "runtime/safetensors.h"
#include "runtime/session/arena.h"
#include "runtime/session/evaluation.h"
#include "runtime/session/open_window.h"
#include "runtime/session/prediction.h"
#include "runtime/session/sharded_update.h"

namespace gacc {

// True for what --save and --load carry: parameters, and the running statistics of batch_norm.
bool is_saved(const PlanBuffer& buffer);

// True when training cannot go on after a window: a gradient was not finite, and no window, or none more, may
// be left out.
bool ends_training(const Plan& plan, const WindowReport& report);
// The sentence about it. `what` was found of the gradients, where more is known than the report says.
std::string why_training_ends(const Plan& plan, const WindowReport& report, std::string what = "");

class Session : NoCopy {
 public:
  // All must outlive the session. With `exchange` it runs the lanes of its rank, else all.
  Session(Device& device, const Plan& plan, RankExchange* exchange = nullptr)
      : plan_(plan),
        arena_(device, plan),
        update_(arena_, exchange),
        window_(arena_, update_, exchange),
        evaluation_(arena_, exchange) {}

  Device& device() { return arena_.device(); }
  // Once: checks that the plan has the buffers a session needs, and loads the artifact on the device. Waits.
  Status open(const Artifact& artifact);
  // Fills the parameters from the seed and clears everything else, but for the buffers of `given`: the caller writes
  // all of each of them next, by `write_buffer`, or a parameter and its half copy by `write_parameter`. Does not wait.
  Status init(uint64_t seed, float lr, std::span<const PlanBuffer* const> given = {});

  // Writes weights of classes that follow from the data, after `init`; nothing where there are none.
  Status write_class_weights(std::span<const float> weights);
  // Forward and backward of `samples` samples (1 to micro_batch); adds to the window. Does not wait.
  Status step(InputBytes inputs, int64_t samples);
  // Counts a launch that another rank makes. Does not wait.
  Status skip(int64_t samples, int64_t next_ordinal);
  // After the window's last step: adds the sums of its lanes, over all ranks. `update` does it itself.
  Status finish_lanes() { return window_.finish_lanes(); }
  // Ends the window with one optimizer update, or, when nothing in it was counted, without one: then only
  // running statistics move. Waits.
  Result<WindowReport> update();
  // Ends the window without an update: its sums are set to zero. Does not wait.
  Status drop_window() { return window_.drop(); }

  // Launches and updates made twice; none before its `begin`.
  Recheck& recheck() { return arena_.recheck(); }

  // The window so far: its launches and samples, and which launches this session makes.
  const OpenWindow& window() const { return window_; }
  // Its sums. Waits, as the next two do.
  Result<WindowSums> sums() { return window_.sums(); }
  // The mean gradient (sum / count, unscaled) of every trained parameter, under the parameter's name, sorted
  // by name; zeros when nothing was counted.
  Result<std::vector<NamedTensor>> mean_gradients();
  // The first parameter (plan order) whose accumulated gradient is not finite; empty when all are.
  Result<std::string> first_bad_parameter();

  Evaluation& evaluation() { return evaluation_; }
  Prediction& prediction() { return prediction_; }

  // Sets the ordinal of the next sample since training began, where the model has random numbers for samples (else
  // nothing happens). Steps count what they see; this is for samples that no step sees. Does not wait.
  Status set_ordinal(int64_t ordinal);

  // For checkpoints: a buffer of the plan as they keep it (waits), and put back, as a whole where ranks share it
  // (then all must call this); and, once all are put back, how far the window was. The buffers are what a
  // session keeps; the rest is in this call.
  Result<std::vector<std::byte>> read_for_checkpoint(const PlanBuffer& buffer) {
    return window_.read_for_checkpoint(buffer);
  }
  Status write_buffer(const PlanBuffer& buffer, std::span<const std::byte> bytes);
  void resume_window(int64_t launches, int64_t samples) { window_.resume(launches, samples); }

  // One f32 (float) or i32 (int32_t) of the plan's state, by name: for what only some models have. Reading
  // waits.
  template <class T>
  Result<T> read_state(std::string_view name) {
    return arena_.read_state<T>(name);
  }
  template <class T>
  Status write_state(std::string_view name, T value) {
    return arena_.write_state(name, value);
  }

  // The parameters as f32, sorted by name: all, or those that are `wanted`. Waits.
  Result<std::vector<NamedTensor>> parameters(const std::function<bool(const PlanBuffer&)>& wanted = {});
  // Overwrites elements of a parameter (or statistic) and of its half copy, from number `first` on.
  Status write_parameter(const PlanBuffer& parameter, int64_t first, std::span<const float> values);
  // Does that with bytes as they lie in a file, whose type is `dtype` ("BF16", "Q8_0"); `first` begins a block, if
  // there are any. Returns false, and changes nothing, where the parameter is not kept in that type alone.
  Result<bool> write_stored(const PlanBuffer& parameter, int64_t first, std::string_view dtype,
                            std::span<const std::byte> bytes);

 private:
  Result<std::vector<float>> gradient_sum(const PlanBuffer& parameter);
  Result<float> read_scale(std::string_view name);
  // Returns the parameter of that name and its half copy, as far as the plan has them.
  const std::vector<const PlanBuffer*>& places(std::string_view parameter) const;

  const Plan& plan_;
  Arena arena_;
  ShardedUpdate update_;
  OpenWindow window_;
  Evaluation evaluation_;
  Prediction prediction_{arena_};
  std::map<std::string_view, std::vector<const PlanBuffer*>> places_;  // by parameter
};

}  // namespace gacc
