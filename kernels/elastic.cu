// The elastic force between a worker x and the centre x̃ (Zhang, Choromanska & LeCun 2015, Algorithms 1 and 2), each
// moment of it in one pass over memory, to the bits of mpitrain/rules/elastic.py.
#include "common.cuh"
#include "exact.cuh"

// d ← α(x − x̃);  x̃ ← x̃ + d. The worker takes d off its own x with its next step.
extern "C" __global__ void elastic_move(const real *x, real *centre, real *d, Index n, real alpha) {
    for (Index i = thread(); i < n; i += threads()) {
        real here = centre[i], force = mul(alpha, sub(x[i], here));
        d[i] = force;
        centre[i] = add(here, force);
    }
}

// x ← x − d;  x ← x − ηg. No d between exchanges.
extern "C" __global__ void easgd_step(real *x, const real *g, const real *d, Index n, real eta) {
    for (Index i = thread(); i < n; i += threads()) {
        real here = d ? sub(x[i], d[i]) : x[i];
        x[i] = sub(here, mul(eta, g[i]));
    }
}

// x ← x − d;  v ← δv − ηg;  x ← x + v;  and, if asked for, at ← x + δv, where the next gradient is to be taken.
extern "C" __global__ void eamsgd_step(
    real *x, real *v, const real *g, const real *d, real *at, Index n, real eta, real delta) {
    for (Index i = thread(); i < n; i += threads()) {
        real here = d ? sub(x[i], d[i]) : x[i];
        real velocity = accelerated(v[i], g[i], eta, delta);
        v[i] = velocity;
        x[i] = here = add(here, velocity);
        if (at) at[i] = add(mul(delta, velocity), here);
    }
}
