/* SPDX-License-Identifier: MIT
 * The mechanisms of the recurrent family, one entry each, and the sets of them that rows of kernels.def name:
 *
 *     X(enumerator less LOAM_, name, gate, beta, delta, objective, regulariser, update, output, cost)
 *
 * gate, beta, delta: the switches of recurrent_form (recurrent.h). The texts are those of loam_mechanism_info
 * in the notation of docs/recurrent.md. Where S is read as it is, a token is one step of a fit from the
 * decayed state D_t = S_{t-1} Diag(e^{g_t}) (steps from S_{t-1} would be other gated delta rules),
 *
 *     S_t = argmin_S <grad J(D_t), S - D_t> + R / beta_t
 *
 * with J the objective and R the regulariser; S of MesaNet minimises J + R. */
#ifndef LOAM_RECURRENT_MECHANISMS_H
#define LOAM_RECURRENT_MECHANISMS_H

/* The one that positive random features go with. */
#define RECURRENT_LINEAR(X) \
    X(LINEAR, "linear", GATE_NONE, false, false, "-<S k, v>", "|S - D|^2 / 2", "S = S + v k^T", "S q", \
      "4 d^2")

/* The state is read as it is: S q. */
#define RECURRENT_DIRECT(X) \
    RECURRENT_LINEAR(X) \
    X(RETENTION, "retention", GATE_HEAD, false, false, "-<S k, v>", "|S - D|^2 / 2", \
      "S = a S + v k^T, a of the head", "S q", "5 d^2") \
    X(SSD, "ssd", GATE_TOKEN, true, false, "-<S k, v>", "|S - D|^2 / 2", "S = a S + beta v k^T", "S q", \
      "5 d^2") \
    X(GLA, "gla", GATE_CHANNEL, false, false, "-<S k, v>", "|S - D|^2 / 2", "S = S Diag(a) + v k^T", "S q", \
      "5 d^2") \
    X(DELTA, "delta", GATE_NONE, true, true, "|S k - v|^2 / 2", "|S - D|^2 / 2", \
      "S = S (I - beta k k^T) + beta v k^T", "S q", "6 d^2") \
    X(GATED_DELTA, "gated-delta", GATE_TOKEN, true, true, "|S k - v|^2 / 2", "|S - D|^2 / 2", \
      "S = a S (I - beta k k^T) + beta v k^T", "S q", "7 d^2") \
    X(KDA, "kda", GATE_CHANNEL, true, true, "|S k - v|^2 / 2", "|S - D|^2 / 2", \
      "S = S Diag(a) (I - beta k k^T) + beta v k^T", "S q", "7 d^2")

/* The read solves a system: S (H + Lambda)^-1 q. */
#define RECURRENT_SOLVED(X) \
    X(MESA, "mesa", GATE_TOKEN, true, false, "sum_i w_i |S k_i - v_i|^2 / 2", "tr(S Lambda S^T) / 2", \
      "S = a S + beta v k^T, H = a H + beta k k^T", "S (H + Lambda)^-1 q", "8 d^2 + 2 n d^2")

#define RECURRENT_MECHANISMS(X) RECURRENT_DIRECT(X) RECURRENT_SOLVED(X)

#endif
