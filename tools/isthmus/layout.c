/* SPDX-License-Identifier: Apache-2.0 */
#include "layout.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct model models[] = {
	{ .name = "qwen3-0.6b", .class_name = "Qwen3ForCausalLM", .type = "qwen3", .hidden = 1024, .layers = 28, .heads = 16, .kv_heads = 8,
		.head_dim = 128, .inter = 3072, .vocab = 151936, .tied = true },
	{ .name = "qwen3-8b", .class_name = "Qwen3ForCausalLM", .type = "qwen3", .hidden = 4096, .layers = 36, .heads = 32, .kv_heads = 8,
		.head_dim = 128, .inter = 12288, .vocab = 151936 },
	{ .name = "qwen3-30b-a3b", .class_name = "Qwen3MoeForCausalLM", .type = "qwen3_moe", .hidden = 2048, .layers = 48, .heads = 32,
		.kv_heads = 4, .head_dim = 128, .inter = 6144, .vocab = 151936, .experts = 128, .experts_per_token = 8, .moe_inter = 768 },
};

const struct model *
layout_model(uint32_t index)
{
	return index < sizeof(models) / sizeof(models[0]) ? &models[index] : NULL;
}

void
layout_free(struct layout *l)
{
	for (uint64_t i = 0; i < l->n; i++)
		free(l->tensors[i].name);
	free(l->tensors);
	*l = (struct layout){ .n = 0 };
}

static bool
grow(struct layout *l)
{
	uint64_t room = l->room ? 2 * l->room : 512;
	struct layout_tensor *more;

	if (l->n < l->room)
		return true;
	more = realloc(l->tensors, room * sizeof(*more));
	if (!more)
		return false;
	l->tensors = more;
	l->room = room;
	return true;
}

/* A BF16 tensor of one (cols 0) or two dimensions. */
static bool add(struct layout *l, uint64_t rows, uint64_t cols, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static bool
add(struct layout *l, uint64_t rows, uint64_t cols, const char *fmt, ...)
{
	struct layout_tensor t = { .rank = cols ? 2 : 1, .shape = { rows, cols }, .dtype = "BF16", .bytes = rows * (cols ? cols : 1) * 2 };
	va_list ap;
	int n;

	if (!grow(l))
		return false;
	va_start(ap, fmt);
	n = vasprintf(&t.name, fmt, ap);
	va_end(ap);
	if (n < 0)
		return false;
	l->tensors[l->n++] = t;
	l->bytes += t.bytes;
	return true;
}

static bool
add_attention(struct layout *l, const struct model *m, unsigned long long i)
{
	uint64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;

	return add(l, m->head_dim, 0, "model.layers.%llu.self_attn.k_norm.weight", i) &&
		add(l, kv, m->hidden, "model.layers.%llu.self_attn.k_proj.weight", i) &&
		add(l, m->hidden, q, "model.layers.%llu.self_attn.o_proj.weight", i) &&
		add(l, m->head_dim, 0, "model.layers.%llu.self_attn.q_norm.weight", i) &&
		add(l, q, m->hidden, "model.layers.%llu.self_attn.q_proj.weight", i) &&
		add(l, kv, m->hidden, "model.layers.%llu.self_attn.v_proj.weight", i);
}

static bool
add_mlp(struct layout *l, uint64_t hidden, uint64_t inter, const char *prefix)
{
	return add(l, hidden, inter, "%s.down_proj.weight", prefix) && add(l, inter, hidden, "%s.gate_proj.weight", prefix) &&
		add(l, inter, hidden, "%s.up_proj.weight", prefix);
}

static bool
add_layer(struct layout *l, const struct model *m, unsigned long long i)
{
	char prefix[96];
	bool good = add(l, m->hidden, 0, "model.layers.%llu.input_layernorm.weight", i);

	snprintf(prefix, sizeof(prefix), "model.layers.%llu.mlp", i);
	if (good && !m->experts)
		good = add_mlp(l, m->hidden, m->inter, prefix);
	for (uint64_t e = 0; good && e < m->experts; e++) {
		snprintf(prefix, sizeof(prefix), "model.layers.%llu.mlp.experts.%llu", i, (unsigned long long)e);
		good = add_mlp(l, m->hidden, m->moe_inter, prefix);
	}
	if (good && m->experts)
		good = add(l, m->experts, m->hidden, "model.layers.%llu.mlp.gate.weight", i);
	return good && add(l, m->hidden, 0, "model.layers.%llu.post_attention_layernorm.weight", i) && add_attention(l, m, i);
}

bool
layout_of_model(struct layout *l, const struct model *model, uint64_t layers)
{
	bool good;

	*l = (struct layout){ .model = model, .layers = layers };
	good = add(l, model->vocab, model->hidden, "model.embed_tokens.weight");
	for (uint64_t i = 0; good && i < layers; i++)
		good = add_layer(l, model, i);
	good = good && add(l, model->hidden, 0, "model.norm.weight");
	if (good && !model->tied)
		good = add(l, model->vocab, model->hidden, "lm_head.weight");
	if (!good)
		layout_free(l);
	return good;
}

bool
layout_of_tensors(struct layout *l, uint64_t n, uint64_t bytes)
{
	*l = (struct layout){ .n = 0 };
	for (uint64_t i = 0; i < n; i++) {
		uint64_t mine = bytes / n + (i < bytes % n);

		if (!add(l, mine / 2, 0, "tensor.%07llu", (unsigned long long)i)) {
			layout_free(l);
			return false;
		}
		if (mine % 2) { /* odd: plain bytes */
			l->tensors[i].dtype = "U8";
			l->tensors[i].shape[0] = mine;
			l->tensors[i].bytes = mine;
			l->bytes++;
		}
	}
	return true;
}
