/* gacc.h: training steps that gacc compiled, from C.
 *
 *   gacc_step *step;                                             an artifact: forward, backward, update, evaluation
 *   gacc_session *run;                                           its parameters and state on a device
 *   gacc_error e = gacc_open("step.ptx", &step);                 or gacc_compile_file("model.toml", NULL, &step)
 *   e = gacc_session_open(step, "auto", NULL, &run);
 *   e = gacc_session_init(run, 1, 0);
 *   for (...) {
 *     e = gacc_session_step(run, arrays, 2, samples);            a micro-batch of your data: forward and backward
 *     if (gacc_session_launches(run) == info.accumulate) e = gacc_session_update(run, &window);
 *   }
 *   e = gacc_session_save(run, "weights.safetensors");
 *
 * Link with -lgacc (pkg-config gacc; CMake: find_package(gacc), gacc::gacc). The library itself is small. The CPU
 * (libgacc-host.so), the emulator (libgacc-emu.so) and the compiler (libgacc-compiler.so) are loaded when they are
 * asked for: from the library's folder, gacc/ in it, or ../lib/gacc and ../gacc from it.
 *
 * Errors. Each function that can fail returns a gacc_error, with kind GACC_OK when it did not. The text is a
 * sentence, that which the programs print. On an error nothing that the function would have written through a
 * pointer is written, and a file is either whole or as it was. A call with a null pointer, in a wrong order or
 * with arrays that do not fit is refused with GACC_WRONG_CALL or GACC_FAILED, and changes nothing. An error of the
 * device during a call ends the session: all further calls but gacc_session_close repeat the error.
 *
 * Ownership. What a function gives through a gacc_step ** or gacc_session ** is the caller's, to be given back
 * with gacc_step_free and gacc_session_close. Strings inside of what a function fills in belong to the step and
 * live as long as it, unless it says otherwise. Arrays that the caller hands over are read or written during the
 * call alone. A session keeps what it needs of its step: the step may be freed first.
 *
 * Threads. Any function may be called from any thread. A step never changes. Calls on one session wait for each
 * other; sessions do not. gacc_session_close waits for the call that runs, and those that wait behind it fail. A
 * session has its own memory on the device and, on a CPU, its own threads.
 *
 * Arrays are row-major, samples first, without gaps: [samples, shape of the input]. They are raw data, as a file
 * of them would be: u8 becomes f32 divided by 255, and what the model says under `normalize` is applied.
 *
 * Waiting. "Waits" below means: returns when the device has done all that was asked for so far. What does not
 * wait only queues work on a GPU; on a CPU it is done when the call returns. */
#ifndef GACC_H
#define GACC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

enum gacc_kind {
  GACC_OK = 0,
  GACC_FAILED = 1,     /* a file, the model, the data or the device is wrong */
  GACC_WRONG_CALL = 2, /* a null pointer, a call before its time, or an unknown name */
  GACC_BUG = 3         /* of gacc; please report it */
};

typedef struct gacc_error {
  int kind;        /* gacc_kind */
  int line;        /* in the model file, from 1; 0: of no place in it */
  int column;      /* from 1; 0: none */
  char text[2036]; /* UTF-8, ends in 0; long texts are cut */
} gacc_error;

typedef struct gacc_step gacc_step;
typedef struct gacc_session gacc_session;

/* "0.1.0"; static. */
const char* gacc_version(void);

/* ---- Steps ---------------------------------------------------------------------------------------------- */

/* Reads and checks the artifact at `path`, which gaccc or gacc_step_save wrote. */
gacc_error gacc_open(const char* path, gacc_step** step);

/* What gaccc's options say. All may be 0. */
typedef struct gacc_compile_options {
  const char* const* set; /* "KEY=VALUE", as after --set; in this order */
  size_t sets;
  const char* target;   /* of the PTX: "sm_80" when null */
  int64_t lora;         /* adapters of that rank at all products of the blocks */
  int64_t context;      /* of a published model: tokens of a window */
  const char* families; /* a folder with more families of published models */
  int pack;             /* of a published model: its windows have several documents, a further input */
} gacc_compile_options;

/* Compiles a model file, a GGUF, the folder of a published model or its config.json, or the text of a model file, which
 * messages call `name` ("model" when null). Takes as long as gaccc does, and needs libgacc-compiler.so. `options` may
 * be null. A wrong model gives GACC_FAILED with the lines that gaccc prints, and the place of the first. With GACC_OK
 * the text is what the compiler warns of. */
gacc_error gacc_compile_file(const char* path, const gacc_compile_options* options, gacc_step** step);
gacc_error gacc_compile_text(const char* text, const char* name, const gacc_compile_options* options,
                             gacc_step** step);

/* Writes the artifact, for gacc-exec and gacc_open. */
gacc_error gacc_step_save(const gacc_step* step, const char* path);

/* The plan as one JSON object: memory by category, launches, FLOPs, equivalence. Null for a null step. */
const char* gacc_step_plan(const gacc_step* step);

enum { GACC_MOST_AXES = 8 };

typedef struct gacc_tensor {
  const char* name;
  const char* kind;  /* "input", "output"; "param", "accum" (a sum over the window) or "state" */
  const char* dtype; /* "f32", "f16", "bf16", "i32"; frozen: also "q8_0", "q4_0", "q4_1" (ggml's blocks) */
  int64_t shape[GACC_MOST_AXES]; /* of an input or output: of a sample */
  size_t axes;
  int64_t bytes; /* of an input or output: of a sample */
} gacc_tensor;

typedef struct gacc_step_info {
  const char* model;    /* its name */
  int64_t micro_batch;  /* most samples of a launch */
  int64_t accumulate;   /* launches of a window, which ends in an update */
  int64_t parameters;   /* numbers, of all parameters */
  int64_t arena_bytes;  /* what a session takes on the device; nothing is allocated later */
  int64_t epochs, seed; /* the model's, where gacc-exec is not told others */
  const char* tail;     /* "flush", "drop" or "carry": what becomes of a window that an epoch leaves open */
  size_t inputs, buffers;
  gacc_tensor output; /* of gacc_session_predict; bytes 0: the step does not predict */
} gacc_step_info;
gacc_error gacc_step_info_of(const gacc_step* step, gacc_step_info* info);

/* Number `index` of gacc_step_info's inputs or buffers, from 0. */
gacc_error gacc_step_input(const gacc_step* step, size_t index, gacc_tensor* tensor);
gacc_error gacc_step_buffer(const gacc_step* step, size_t index, gacc_tensor* tensor);

/* Null is allowed. */
void gacc_step_free(gacc_step* step);

/* ---- Sessions ------------------------------------------------------------------------------------------- */

typedef struct gacc_device_options {
  int threads; /* of a CPU; 0: all cores */
  int64_t
      recheck; /* makes every `recheck`-th launch and update twice and compares the bits; 0: none. A difference is
                      an error of the call, with the state put back (docs/running.md) */
} gacc_device_options;

/* `device`: "auto", "cpu", "cuda", "cuda:N" or "emulate", as for gacc-exec; "auto" when null. Compiles or loads
 * the step for the device and allocates all memory. `options` may be null. Waits. */
gacc_error gacc_session_open(const gacc_step* step, const char* device, const gacc_device_options* options,
                             gacc_session** session);

/* Fills the parameters from the seed and clears everything else; a session begins with this, or anew. Of
 * `epoch_samples`, the samples of an epoch, schedules in epochs take their length; 0 where there is none. The work is
 * done when another call first needs it: what gacc_session_load brings before that is not drawn. */
gacc_error gacc_session_init(gacc_session* session, int64_t seed, int64_t epoch_samples);

/* Tells how many updates the run makes in all, those before a checkpoint counted; after init or resume. A model with
 * schedule.total = "run" needs it before its first step, unless it goes on from a checkpoint that has it. `remark`,
 * of `size` bytes, gets a sentence where the schedule has another length, or the run had one before; else "". It may
 * be null. Waits. */
gacc_error gacc_session_expect(gacc_session* session, int64_t updates, char* remark, size_t size);

/* Replaces all parameters by those of a safetensors file, or of the folder of a published model, and the adapters by
 * those of a folder with adapter_config.json, or of a GGUF that is an adapter. After init. */
gacc_error gacc_session_load(gacc_session* session, const char* path);

typedef struct gacc_array {
  const char* name;  /* of the model's input */
  const char* dtype; /* of the data: "u8", "u16", "i8", "i16", "i32", "i64", "f32" or "f64" */
  const void* data;
  size_t bytes; /* samples * elements of a sample * bytes of an element */
} gacc_array;

/* Forward and backward of `samples` samples, 1 to micro_batch, added to the window. The arrays are those of all
 * inputs, in any order. At most `accumulate` launches make a window. No copy is made on the way to the device of f32
 * and i32 that nothing normalises. Does not wait. */
gacc_error gacc_session_step(gacc_session* session, const gacc_array* arrays, size_t count, int64_t samples);

/* Launches of the window so far. 0 for a null session. */
int64_t gacc_session_launches(gacc_session* session);

typedef struct gacc_window {
  int64_t launches, samples;
  int applied;      /* 0: nothing was counted, or a gradient was not finite; the parameters stay */
  int skipped;      /* 1: a gradient was not finite, and the model says that such windows are left out */
  double loss;      /* mean over the counted elements */
  double grad_norm; /* of the mean gradient, before clipping */
  double lr;        /* that was used */
} gacc_window;

/* Ends the window, which has a launch at least, with one update of the optimizer. `window` may be null. A gradient
 * that is not finite is an error, unless the model skips such windows. Waits. */
gacc_error gacc_session_update(gacc_session* session, gacc_window* window);

/* Training on an epoch whose length only its end tells, with windows and tails as gacc-exec has them. A call is
 * gacc_session_step, and gacc_session_update where the window is full. `window` gets that window, or launches = 0.
 * Under train.tail = "drop" a micro-batch of fewer than micro_batch samples is left out; it must be the epoch's
 * last. */
gacc_error gacc_session_train(gacc_session* session, const gacc_array* arrays, size_t count, int64_t samples,
                              gacc_window* window);
/* Ends the epoch: an open window is updated with what is there, dropped, or goes on, as train.tail says. */
gacc_error gacc_session_end_epoch(gacc_session* session, gacc_window* window);

/* Adds up to micro_batch samples to an evaluation; the parameters and the window stay. Does not wait. */
gacc_error gacc_session_eval(gacc_session* session, const gacc_array* arrays, size_t count, int64_t samples);

enum { GACC_MOST_METRICS = 16 };
typedef struct gacc_evaluation {
  int64_t samples;
  int64_t counted; /* elements of the loss */
  double loss;     /* mean over them; NaN when there is none */
  size_t metrics;  /* of the model's model.metrics */
  struct {
    const char* name;
    double value;
  } metric[GACC_MOST_METRICS];
} gacc_evaluation;

/* Ends an evaluation that has samples; the next gacc_session_eval begins another. Waits. */
gacc_error gacc_session_eval_end(gacc_session* session, gacc_evaluation* evaluation);

/* Tells the session that the evaluation is one of its training, which schedule.type = "plateau" follows. `better` gets
 * whether it is better by `metric` ("loss", or one of the model's) than all before it. Of these `best` is the best
 * value, NaN before the first; it gets the new one. Of accuracy and r2 the larger is better, of all others the smaller;
 * a NaN never is. A null evaluation only checks the metric's name. */
gacc_error gacc_session_evaluated(gacc_session* session, const gacc_evaluation* evaluation,
                                  const char* metric, double* best, int* better);

/* The model's output for any number of samples, as an evaluation computes it, to `outputs`: row-major
 * [samples, shape of the output], of `bytes` bytes. Of the arrays only those are looked at that the output depends on.
 * The parameters, the window and an evaluation stay. Values are checked a launch at a time: on an error some of
 * `outputs` may be written. Waits. */
gacc_error gacc_session_predict(gacc_session* session, const gacc_array* arrays, size_t count,
                                int64_t samples, float* outputs, size_t bytes);

typedef struct gacc_draw_options {
  double temperature; /* divides the logits; 0: always the most likely token */
  int64_t top_k;      /* among so many of the most likely tokens; 0: among all */
  double top_p;       /* then among the fewest of these whose probabilities make this; 1: among all */
  int64_t seed;       /* of the random number, which also depends on the token's position in the text */
} gacc_draw_options;

/* The token that follows a text of `count` tokens, at least one, drawn as gacc-exec --generate draws it; the most
 * likely one where `draw` is null. The text's keys and values are kept until another call runs something: of the next
 * text only what differs from this one is computed. `token` may be null; then they are kept and nothing is drawn. The
 * parameters, the window and an evaluation stay. Waits. */
gacc_error gacc_session_next_token(gacc_session* session, const int32_t* text, size_t count,
                                   const gacc_draw_options* draw, int32_t* token);

/* A buffer of the plan, by name, as its dtype and row-major shape say; `bytes` must be its size. Reading a
 * parameter also works while a window is open. Writing an f32 parameter writes its half copy, too. Both wait. */
gacc_error gacc_session_read(gacc_session* session, const char* name, void* data, size_t bytes);
gacc_error gacc_session_write(gacc_session* session, const char* name, const void* data, size_t bytes);

typedef struct gacc_save_options {
  int adapter;      /* the adapters alone, into a folder as PEFT has it */
  int merge;        /* adds the adapters to the weights */
  int published;    /* under the names of the model's [load] */
  const char* type; /* of the numbers, but for adapters: "f32" (when null), "bf16" or "f16" */
} gacc_save_options;

/* The parameters in another form, as gacc-exec --save has them. A path that ends in "/", or is a folder, becomes the
 * whole folder of a published model, with config.json and the tokenizer's files of that which gacc_session_load has
 * read. `options` may be null. Waits. */
gacc_error gacc_session_save_as(gacc_session* session, const char* path, const gacc_save_options* options);

/* The parameters as f32, as a safetensors file; a path that ends as another format does, such as w.pt, is refused.
 * Waits. A macro, because it is gacc_session_save_as without options. */
#define gacc_session_save(session, path) gacc_session_save_as(session, path, NULL)

/* The whole state, an open window too, in FOLDER/checkpoint, from which another session goes on with the same
 * bits. It has no position in a data set, which is the caller's to keep. With train.lanes above 1 it is of the
 * open window's start: the session that goes on has no launches, and the window's come again. Waits. */
gacc_error gacc_session_checkpoint(gacc_session* session, const char* folder);
/* Goes on from one; the step must be of the same model. It may be gacc-exec's. Instead of init. */
gacc_error gacc_session_resume(gacc_session* session, const char* folder);

/* Waits, and gives the session back. Null is allowed; other calls on it at that time end or fail.
 * What the emulator found in all is an error here; the session is gone all the same. */
gacc_error gacc_session_close(gacc_session* session);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
