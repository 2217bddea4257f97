// SPDX-License-Identifier: MIT
// BR-137: the library builds without run-time type information and without OpenMP. Compiled only, see
// meson.build.
#include <lockstep/extra_state.hpp>
#include <lockstep/lockstep.hpp>

using namespace lockstep;

template class lockstep::Local<GradientAggregation<Adam>>;
template class lockstep::SyncReplicas<PerVariable<AdamW>, InProcess>;
template struct lockstep::GradientAggregation<SyncReplicas<Sgd, InProcess>>;
template class lockstep::ExtraState<InProcess, double>;
