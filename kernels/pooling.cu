// Max-pooling of images x [n, height, width, channels] over windows `size` wide, `stride` apart and wholly inside. A
// thread makes one element; neighbours are neighbouring channels, so that memory is read in runs.
#include "common.cuh"

// out [n, rows, columns, channels] = the greatest of each window; place = where in it, row by row. The first of equals
// wins; NaN wins over every number.
extern "C" __global__ void max_pool(
    const real *x, real *out, unsigned char *place, unsigned total, int height, int width, int channels, int rows,
    int columns, int size, int stride) {
    for (Index i = thread(); i < total; i += threads()) {
        unsigned c = (unsigned)i % channels, pixel = (unsigned)i / channels;
        unsigned column = pixel % columns, row = pixel / columns % rows, image = pixel / columns / rows;
        const real *corner = x + ((Index)(image * height + row * stride) * width + column * stride) * channels + c;
        real best = *corner;
        int where = 0;
        for (int k = 1; k < size * size; k++) {
            real value = corner[(Index)(k / size * width + k % size) * channels];
            if (value > best || value != value) best = value, where = k;
        }
        out[i] = best;
        place[i] = (unsigned char)where;
    }
}

// dx [n, height, width, channels] = the dy of every window whose maximum lies there. A thread gathers, window after
// window, for one element of dx: so nothing is added by atomics, and overlapping windows add up in the CPU's order.
extern "C" __global__ void max_unpool(
    const real *dy, const unsigned char *place, real *dx, unsigned total, int height, int width, int channels, int rows,
    int columns, int size, int stride) {
    for (Index i = thread(); i < total; i += threads()) {
        int c = (unsigned)i % channels;
        unsigned pixel = (unsigned)i / channels;
        int x = pixel % width, y = pixel / width % height, image = pixel / width / height;
        int top = y < size ? 0 : (y - size) / stride + 1, left = x < size ? 0 : (x - size) / stride + 1;
        real sum = 0;
        for (int row = top; row < rows && row * stride <= y; row++)
            for (int column = left; column < columns && column * stride <= x; column++) {
                Index j = ((Index)(image * rows + row) * columns + column) * channels + c;
                if (place[j] == (y - row * stride) * size + x - column * stride) sum += dy[j];
            }
        dx[i] = sum;
    }
}
