/* SPDX-License-Identifier: Apache-2.0
 *
 * help.c - --help and man pages (--help=man), both out of the tables of verbs and options.
 */
#include "cli.h"

#include <string.h>

#define WIDTH 96

static const char exits[] = "0 done; 1 failed (the error says what, who and the next step); 2 wrong usage; 3 verification failed; "
	"124 deadline; 128+n ended by signal n after an orderly abort.";

/* What the library itself reads. */
static const char copy_text[] = "ISTHMUS_COPY names the loop that copies large pieces of memory: avx2-nt, avx2-nt4, avx512-nt, rep-movsb or libc, as "
	"far as the CPU can run it. Without it each is tried on the first transfer of 8 MiB and more, and the fastest is kept; any other value is refused.";

static bool
shown(const struct option *opt, const struct verb *verb)
{
	return (opt->sets & verb->sets) && opt->type != TYPE_UNBUILT;
}

/* Writes text folded at WIDTH, each line after the first indented; column says where the first begins. */
static void
fold(FILE *to, const char *text, int indent, int column)
{
	while (*text) {
		int n = (int)strcspn(text, " \n");

		if (column > indent && column + 1 + n > WIDTH) {
			fprintf(to, "\n%*s", indent, "");
			column = indent;
		} else if (column > indent) {
			fputc(' ', to);
			column++;
		}
		fprintf(to, "%.*s", n, text);
		column += n;
		text += n;
		if (text[0] == '\n' && text[1] == '\n') {
			fprintf(to, "\n\n%*s", indent, "");
			column = indent;
		}
		text += strspn(text, " \n");
	}
	fputc('\n', to);
}

static void
help_option(FILE *to, const struct option *opt)
{
	char head[160], letter[8] = "    ";
	int n;

	if (opt->letter)
		snprintf(letter, sizeof(letter), "-%c, ", opt->letter);
	n = snprintf(head, sizeof(head), "  %s--%s%s%s", letter, opt->name, opt->value ? " " : "", opt->value ? opt->value : "");
	if (n < 34)
		fprintf(to, "%-34s", head);
	else
		fprintf(to, "%s\n%34s", head, "");
	fold(to, opt->help, 34, 34);
}

void
help_verb(FILE *to, const struct verb *verb)
{
	const struct option *opt;

	fprintf(to, "Usage: isthmus %s%s%s [options]%s\n\n", verb->name, verb->args_max < 0 ? "" : verb->args[0] ? " " : "",
		verb->args_max < 0 ? "" : verb->args, verb->args_max < 0 ? " -- CMD..." : "");
	fold(to, verb->text[0] ? verb->text : verb->summary, 0, 0);
	fputs("\nOptions:\n", to);
	for (uint32_t i = 0; (opt = option_row(i)) != NULL; i++)
		if (shown(opt, verb))
			help_option(to, opt);
	fputs("\n", to);
	fold(to, "A long option can also be given as a variable, ISTHMUS_ and its name in capitals; the option counts. Sizes take KiB, MiB and "
		"GiB; times are seconds.", 0, 0);
	if (verb->sets & SET_MOVE)
		fold(to, copy_text, 0, 0);
	fputs("\nExit status:", to);
	fold(to, exits, 0, 12);
	fprintf(to, "\nExamples:\n");
	for (const char *at = verb->example; *at;) {
		int n = (int)strcspn(at, "\n");

		fprintf(to, "  %.*s\n", n, at);
		at += n + (at[n] == '\n');
	}
}

void
help_program(FILE *to)
{
	const struct verb *verb;

	fputs("Usage: isthmus VERB [options]\n\n", to);
	fold(to, "Joins process worlds that already exist into one group, and carries model weights between them.", 0, 0);
	fputs("\nVerbs:\n", to);
	for (uint32_t i = 0; (verb = verb_row(i)) != NULL; i++)
		if (!verb->hidden)
			fprintf(to, "  %-18s%s\n", verb->name, verb->summary);
	fputs("\n'isthmus VERB --help' tells more. 'isthmus --version' shows the version.\n\nExit status:", to);
	fold(to, exits, 0, 12);
}

/* ---- man pages ---- */

/* roff takes '-', '\' and a leading '.' or '\'' for its own. */
static void
roff(FILE *to, const char *text)
{
	bool line_start = true;

	for (; *text; text++) {
		if (text[0] == '\n' && text[1] == '\n') {
			fputs("\n.PP\n", to);
			text++;
			line_start = true;
			continue;
		}
		if (line_start && (*text == '.' || *text == '\''))
			fputs("\\&", to);
		if (*text == '-')
			fputs("\\-", to);
		else if (*text == '\\')
			fputs("\\e", to);
		else
			fputc(*text, to);
		line_start = *text == '\n';
	}
}

static void
man_option(FILE *to, const struct option *opt)
{
	fputs(".TP\n.B ", to);
	if (opt->letter)
		fprintf(to, "\\-%c, ", opt->letter);
	fputs("\\-\\-", to);
	roff(to, opt->name);
	if (opt->value) {
		fputs(" \\fI", to);
		roff(to, opt->value);
		fputs("\\fP", to);
	}
	fputc('\n', to);
	roff(to, opt->help);
	fputc('\n', to);
}

static void
man_head(FILE *to, const char *name, const char *summary)
{
	fprintf(to, ".\\\" Generated from the tables in tools/isthmus by scripts/gen-man; do not edit.\n.TH ISTHMUS%s%s 1 \"\" \"isthmus %s\" \"User commands\"\n.SH NAME\nisthmus%s%s \\- ",
		name[0] ? "-" : "", name, ist_version(), name[0] ? "\\-" : "", name);
	roff(to, summary);
	fputc('\n', to);
}

static void
man_tail(FILE *to, bool see_program)
{
	fputs(".SH ENVIRONMENT\nEach long option has a variable: ISTHMUS_ and its name in capitals, '_' for '\\-'. The option counts where both are given. "
		"Unknown ISTHMUS_ variables are ignored.\n.PP\n", to);
	roff(to, copy_text);
	fputs("\n.SH EXIT STATUS\n", to);
	roff(to, exits);
	fputs(see_program ? "\n.SH SEE ALSO\n.BR isthmus (1)\n" : "\n", to);
}

void
man_verb(FILE *to, const struct verb *verb)
{
	const struct option *opt;

	man_head(to, verb->name, verb->summary);
	fprintf(to, ".SH SYNOPSIS\n.B isthmus %s\n", verb->name);
	if (verb->args_max < 0)
		fputs("[\\fIoptions\\fP] \\-\\- ", to);
	fprintf(to, "\\fI%s\\fP%s\n.SH DESCRIPTION\n", verb->args, verb->args_max < 0 ? "" : " [\\fIoptions\\fP]");
	roff(to, verb->text);
	fputs("\n.SH OPTIONS\n", to);
	for (uint32_t i = 0; (opt = option_row(i)) != NULL; i++)
		if (shown(opt, verb))
			man_option(to, opt);
	fputs(".SH EXAMPLES\n.nf\n", to);
	roff(to, verb->example);
	fputs("\n.fi\n", to);
	man_tail(to, true);
}

void
man_program(FILE *to)
{
	const struct verb *verb;

	man_head(to, "", "join process worlds and carry model weights between them");
	fputs(".SH SYNOPSIS\n.B isthmus\n\\fIVERB\\fP [\\fIoptions\\fP]\n.SH DESCRIPTION\nJoins process worlds that already exist into one group, and carries "
		"model weights between them. Each verb has a page of its own.\n.SH VERBS\n", to);
	for (uint32_t i = 0; (verb = verb_row(i)) != NULL; i++) {
		if (verb->hidden)
			continue;
		fputs(".TP\n.BR isthmus\\-", to);
		roff(to, verb->name);
		fputs(" (1)\n", to);
		roff(to, verb->summary);
		fputc('\n', to);
	}
	man_tail(to, false);
}
