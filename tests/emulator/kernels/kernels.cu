// Small kernels written for testing the emulator, independently of gacc's code generator. kernels.ptx is what
// nvcc made of this file. Nothing here is built by gacc's build.
extern "C" {

// Sum of n floats: warp shuffles, then shared memory, one atomic a block.
__global__ void reduce_sum(const float* x, int n, float* out) {
  __shared__ float part[32];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  for (int d = 16; d > 0; d >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, d);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f;
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (threadIdx.x == 0) atomicAdd(out, sum);
  }
}

// Inclusive scan of one block's ints (Hillis-Steele in shared memory, double buffered).
__global__ void scan(const int* x, int* y) {
  extern __shared__ int buffer[];
  int t = threadIdx.x, n = blockDim.x, in = 0;
  buffer[t] = x[t];
  __syncthreads();
  for (int d = 1; d < n; d <<= 1) {
    int v = buffer[in * n + t];
    if (t >= d) v += buffer[in * n + t - d];
    in ^= 1;
    buffer[in * n + t] = v;
    __syncthreads();
  }
  y[t] = buffer[in * n + t];
}

__device__ void grid_barrier(unsigned* arrived, unsigned target) {
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
    unsigned seen;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
    while (seen < target);
  }
  __syncthreads();
}
// Cooperative: each round every thread takes its left neighbour's value over the whole grid.
__global__ void rotate(int* x, int* y, unsigned* arrived, int rounds) {
  int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int k = 0; k < rounds; ++k) {
    int* from = k % 2 ? y : x;
    int* to = k % 2 ? x : y;
    to[i] = from[(i + n - 1) % n];
    grid_barrier(arrived, (k + 1) * gridDim.x);
  }
}
// The last block to finish adds up what the others wrote (fence and counter).
__global__ void last_block(const float* x, float* parts, unsigned* done, float* out) {
  __shared__ bool last;
  float sum = x[blockIdx.x * 32 + threadIdx.x];
  for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = sum;
    __threadfence();
    last = atomicInc(done, gridDim.x) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float all = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) all += parts[b];
    *out = all;
  }
}

}
