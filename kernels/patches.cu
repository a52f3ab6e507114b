// Convolution as a matrix product, for use without cuDNN: patches of images x [n, height, width, channels] as rows of a
// matrix (im2col), and the adjoint (col2im). A patch has kernel height × kernel width × channels elements. A row of
// threads copies a patch or computes a pixel, so that memory accesses are contiguous.
#include "common.cuh"
#include "images.cuh"

// out [n, rows, columns, kh·kw·channels] = the patch under each output pixel, 0 outside the image.
extern "C" __global__ void gather_patches(
    const real *x, real *out, Index pixels, int height, int width, int channels, int rows, int columns, int kh, int kw,
    int stride, int pad) {
    int run = kw * channels;  // a row of the patch is contiguous in the image
    for (Index pixel = row_of_threads(); pixel < pixels; pixel += rows_of_threads()) {
        Pixel at = place_of(pixel, rows, columns);
        int top = at.y * stride - pad, left = (at.x * stride - pad) * channels;
        const real *image = x + (Index)at.image * height * width * channels;
        for (int t = threadIdx.x; t < kh * run; t += blockDim.x) {
            int y = top + t / run, along = left + t % run;
            bool inside = 0 <= y && y < height && 0 <= along && along < width * channels;
            out[pixel * kh * run + t] = inside ? image[y * width * channels + along] : 0;
        }
    }
}

// out [n, height, width, channels] = the sum of all patches at their positions. A thread adds up one element over the
// patches in the order of the CPU: without atomics, and with the same bits.
extern "C" __global__ void add_patches(
    const real *patches, real *out, Index pixels, int height, int width, int channels, int rows, int columns, int kh,
    int kw, int stride, int pad) {
    for (Index pixel = row_of_threads(); pixel < pixels; pixel += rows_of_threads()) {
        Pixel at = place_of(pixel, height, width);
        int y = at.y + pad, x = at.x + pad;
        int top = first_window(y, kh, stride), left = first_window(x, kw, stride);
        for (int c = threadIdx.x; c < channels; c += blockDim.x) {
            real sum = 0;
            for (int row = top; row < rows && row * stride <= y; row++)
                for (int column = left; column < columns && column * stride <= x; column++) {
                    Index patch = ((Index)(at.image * rows + row) * columns + column) * kh * kw;
                    sum += patches[(patch + (y - row * stride) * kw + x - column * stride) * channels + c];
                }
            out[pixel * channels + c] = sum;
        }
    }
}
