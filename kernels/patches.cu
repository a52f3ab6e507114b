// Convolution as a matrix product, where there is no cuDNN: patches of images x [n, height, width, channels] as matrix
// rows (im2col), and the adjoint (col2im). A row is kernel height × kernel width × channels long; neighbouring threads
// copy neighbouring channels.
#include "common.cuh"

// out [n, rows, columns, kh·kw·channels] = the patch under each output pixel, 0 outside the image.
extern "C" __global__ void gather_patches(
    const real *x, real *out, unsigned total, int height, int width, int channels, int rows, int columns, int kh,
    int kw, int stride, int pad) {
    for (Index i = thread(); i < total; i += threads()) {
        int c = (unsigned)i % channels;
        unsigned rest = (unsigned)i / channels;
        int dx = rest % kw, dy = rest / kw % kh;
        unsigned pixel = rest / kw / kh;
        int column = pixel % columns, row = pixel / columns % rows, image = pixel / columns / rows;
        int px = column * stride - pad + dx, py = row * stride - pad + dy;
        bool inside = 0 <= px && px < width && 0 <= py && py < height;
        out[i] = inside ? x[((Index)(image * height + py) * width + px) * channels + c] : 0;
    }
}

// out [n, height, width, channels] = the sum of all patches at their places. A thread gathers for one element, patch
// after patch, in the CPU's order: no atomics, the same bits.
extern "C" __global__ void add_patches(
    const real *patches, real *out, unsigned total, int height, int width, int channels, int rows, int columns, int kh,
    int kw, int stride, int pad) {
    for (Index i = thread(); i < total; i += threads()) {
        int c = (unsigned)i % channels;
        unsigned pixel = (unsigned)i / channels;
        int x = pixel % width + pad, y = pixel / width % height + pad, image = pixel / width / height;
        int top = y < kh ? 0 : (y - kh) / stride + 1, left = x < kw ? 0 : (x - kw) / stride + 1;
        real sum = 0;
        for (int row = top; row < rows && row * stride <= y; row++)
            for (int column = left; column < columns && column * stride <= x; column++) {
                Index patch = ((Index)(image * rows + row) * columns + column) * kh * kw;
                sum += patches[(patch + (y - row * stride) * kw + x - column * stride) * channels + c];
            }
        out[i] = sum;
    }
}
