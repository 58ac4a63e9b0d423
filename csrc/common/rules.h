// The update rules in compiled code: their names, and how the gates beta and alpha of a key act. Operators and kernels
// of every device include this file, so it includes no header of torch or CUDA.
#pragma once

#include "names.h"

namespace fwp {

// The numbers of rules follow this order. A test compares the list with fwp_fairseq/ops/call.py.
#define FWP_RULES(EACH) EACH(sum) EACH(delta) EACH(gated) EACH(gated_delta)

enum class Rule : int { FWP_RULES(FWP_ENUMERATOR) };
constexpr const char* rule_names[] = {FWP_RULES(FWP_NAME)};

constexpr bool takes_beta(Rule rule) { return rule != Rule::sum; }
constexpr bool takes_alpha(Rule rule) { return rule == Rule::gated_delta; }

// A rule that corrects subtracts the old value of a key, and multiplies the difference, but not the key's 1 in z, by
// beta. Under a rule that weighs writes, beta multiplies the value and the key's 1 in z.
constexpr bool corrects(Rule rule) { return rule == Rule::delta || rule == Rule::gated_delta; }
constexpr bool weighs_writes(Rule rule) { return rule == Rule::gated; }

// A rule that decays multiplies all earlier content by the factor `keep` of each key, which is 1 - beta or alpha.
// Decoding stores this gate for each position (`strengths`).
constexpr bool decays(Rule rule) { return rule == Rule::gated || rule == Rule::gated_delta; }
constexpr bool beta_decays(Rule rule) { return rule == Rule::gated; }
template <class T> constexpr T stored_gate(Rule rule, T beta, T alpha) { return beta_decays(rule) ? beta : alpha; }
template <class T> constexpr T keep_of_stored(Rule rule, T gate) { return beta_decays(rule) ? 1 - gate : gate; }
template <class T> constexpr T keep_of(Rule rule, T beta, T alpha) {
  return decays(rule) ? keep_of_stored(rule, stored_gate(rule, beta, alpha)) : T(1);
}
// The gradient of beta, from that of keep and that of the factor of the key's write.
template <class T> constexpr T beta_gradient(Rule rule, T of_write, T of_keep) {
  return beta_decays(rule) ? of_write - of_keep : of_write;
}

}  // namespace fwp
