/* Trains with arrays of one's own: a line through points, y = 2 a - b + 0.5.
 *
 *   cc embed.c $(pkg-config --cflags --libs gacc) -o embed && ./embed [cpu]            (docs/library.md) */
#include <gacc.h>
#include <stdio.h>
#include <stdlib.h>

static const char *model =
    "model = { name = \"line\" }\n"
    "inputs.x = { shape = [2], dtype = \"f32\" }\n"
    "inputs.y = { shape = [1], dtype = \"f32\" }\n"
    "loss = { type = \"mse\", target = \"y\" }\n"
    "optimizer = { type = \"sgd\", lr = 0.1 }\n"
    "train = { micro_batch = 8, accumulate = 4 }\n"
    "[[layers]]\n"
    "type = \"linear\"\n"
    "name = \"line\"\n"
    "features = 1\n";

static void must(gacc_error error) {
  if (error.kind == GACC_OK) return;
  fprintf(stderr, "%s\n", error.text);
  exit(1);
}

int main(int argc, char **argv) {
  gacc_step *step;
  gacc_session *run;
  gacc_step_info info;
  gacc_window window;
  float x[8][2], y[8], weight[2], bias;
  gacc_array arrays[2];
  int i, update;

  must(gacc_compile_text(model, "line", NULL, &step));
  must(gacc_step_info_of(step, &info));
  must(gacc_session_open(step, argc > 1 ? argv[1] : "auto", NULL, &run));
  must(gacc_session_init(run, 1, 0));

  arrays[0].name = "x", arrays[0].dtype = "f32", arrays[0].data = x, arrays[0].bytes = sizeof x;
  arrays[1].name = "y", arrays[1].dtype = "f32", arrays[1].data = y, arrays[1].bytes = sizeof y;
  for (update = 1; update <= 200; ++update) {
    while (gacc_session_launches(run) < info.accumulate) { /* a window: the update sees 32 points */
      for (i = 0; i < 8; ++i) {
        x[i][0] = (float)rand() / (float)RAND_MAX;
        x[i][1] = (float)rand() / (float)RAND_MAX;
        y[i] = 2 * x[i][0] - x[i][1] + 0.5f;
      }
      must(gacc_session_step(run, arrays, 2, 8));
    }
    must(gacc_session_update(run, &window));
    if (update % 50 == 0) printf("update %d: loss %.6f\n", update, window.loss);
  }
  must(gacc_session_read(run, "line.weight", weight, sizeof weight));
  must(gacc_session_read(run, "line.bias", &bias, sizeof bias));
  printf("y = %.2f a %+.2f b %+.2f, in %ld bytes\n", weight[0], weight[1], bias, (long)info.arena_bytes);
  must(gacc_session_close(run));
  gacc_step_free(step);
  return 0;
}
