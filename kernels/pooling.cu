// Max-pooling over windows of up to 256 pixels, whose positions fit into a byte.
#include "common.cuh"
#include "images.cuh"
typedef unsigned char Place;
#include "windows.cuh"
