// SPDX-License-Identifier: MIT
#include "train.hpp"

template void digits::train_with(const lockstep::AdamW&, lockstep::Variables<Real>&, Job&);
