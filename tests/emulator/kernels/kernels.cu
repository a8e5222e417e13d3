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
