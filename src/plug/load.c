/* SPDX-License-Identifier: Apache-2.0 */
#include "plug/load.h"

#include "base/fail.h"
#include "base/openfd.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OP "backend_load"

#if defined(__x86_64__)
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#elif defined(__riscv)
#define MACHINE EM_RISCV
#elif defined(__powerpc64__)
#define MACHINE EM_PPC64
#elif defined(__s390x__)
#define MACHINE EM_S390
#else
#define MACHINE EM_NONE
#endif

enum { HEADERS_MAX = 512 }; /* program headers; real libraries have about ten */

static ist_err
bad(struct ist_error *err, const char *path, const char *reason)
{
	ist__fail(err, IST_BAD_PLUGIN, OP, "%s: %s", path, reason);
	ist__fail_next(err, "give the path of a shared library that exports isthmus_backend_v1 or isthmus_device_v1; "
		"'isthmus check %s' looks closer", path);
	return IST_BAD_PLUGIN;
}

ist_err
ist__load_find(const struct ist__ctx *ctx, const char *path, char **real, struct ist__file_id *id, struct ist_error *err)
{
	struct stat st;
	char *full, *copy;

	if (!path || !*path)
		return bad(err, "\"\"", "the path is empty");
	full = realpath(path, NULL); /* a bare name is a file of the current directory: it is never looked for elsewhere */
	if (!full) {
		ist__fail_sys(err, IST_BAD_PLUGIN, errno, OP, "%s", path);
		ist__fail_next(err, "give the path of an existing shared library; nothing is searched for");
		return IST_BAD_PLUGIN;
	}
	if (stat(full, &st) || !S_ISREG(st.st_mode)) {
		free(full);
		return bad(err, path, "not a regular file");
	}
	copy = ist__strdup(ctx, full);
	free(full);
	if (!copy)
		return ist__fail_memory(err, OP);
	*id = (struct ist__file_id){ .dev = st.st_dev, .ino = st.st_ino };
	*real = copy;
	return IST_OK;
}

static bool
inside(uint64_t offset, uint64_t bytes, uint64_t file)
{
	uint64_t end;

	return !__builtin_add_overflow(offset, bytes, &end) && end <= file;
}

static bool
read_all(int fd, void *to, uint64_t bytes, uint64_t offset)
{
	char *at = to;

	while (bytes > 0) {
		ssize_t n = pread(fd, at, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		at += n;
		offset += (uint64_t)n;
		bytes -= (uint64_t)n;
	}
	return true;
}

static const char *
check_header(const Elf64_Ehdr *h, uint64_t bytes)
{
	const uint16_t one = 1;
	unsigned char order = *(const unsigned char *)&one ? ELFDATA2LSB : ELFDATA2MSB;

	if (memcmp(h->e_ident, ELFMAG, SELFMAG) != 0)
		return "not a shared library (no ELF header)";
	if (h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_ident[EI_DATA] != order || (MACHINE != EM_NONE && h->e_machine != MACHINE))
		return "built for another kind of machine";
	if (h->e_type != ET_DYN)
		return "not a shared library (another type of ELF file)";
	if (h->e_phentsize != sizeof(Elf64_Phdr) || h->e_phnum == 0 || h->e_phnum > HEADERS_MAX)
		return "damaged: its program headers make no sense";
	if (!inside(h->e_phoff, (uint64_t)h->e_phnum * sizeof(Elf64_Phdr), bytes))
		return "cut short: its program headers lie past the end of the file";
	/* the sections come last in a file, so that even a little cut off shows here */
	if (h->e_shoff != 0 && !inside(h->e_shoff, (uint64_t)h->e_shnum * h->e_shentsize, bytes))
		return "cut short: its section headers lie past the end of the file";
	return NULL;
}

static const char *
check_segments(int fd, const Elf64_Ehdr *h, uint64_t bytes)
{
	bool loads = false, dynamic = false;

	for (uint32_t i = 0; i < h->e_phnum; i++) {
		Elf64_Phdr p;

		if (!read_all(fd, &p, sizeof(p), h->e_phoff + i * sizeof(p)))
			return "its program headers can't be read";
		if (p.p_type == PT_LOAD && p.p_filesz > p.p_memsz)
			return "damaged: a segment is larger in the file than in memory";
		if ((p.p_type == PT_LOAD || p.p_type == PT_DYNAMIC) && !inside(p.p_offset, p.p_filesz, bytes))
			return "cut short: a segment lies past the end of the file";
		loads |= p.p_type == PT_LOAD;
		dynamic |= p.p_type == PT_DYNAMIC;
	}
	return loads && dynamic ? NULL : "not a shared library (nothing to load)";
}

static const char *
check_file(int fd)
{
	struct stat st;
	Elf64_Ehdr h;
	const char *why;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		return "not a regular file";
	if (st.st_size == 0)
		return "the file is empty";
	if ((uint64_t)st.st_size < sizeof(h) || !read_all(fd, &h, sizeof(h), 0))
		return "not a shared library (too short)";
	why = check_header(&h, (uint64_t)st.st_size);
	return why ? why : check_segments(fd, &h, (uint64_t)st.st_size);
}

ist_err
ist__load_entry(const char *real, const char *entry, void **out, struct ist_error *err)
{
	int fd = ist__open(AT_FDCWD, real, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
	const char *why;
	void *lib, *sym;

	if (fd < 0) {
		ist__fail_sys(err, IST_BAD_PLUGIN, errno, OP, "%s", real);
		ist__fail_next(err, "make the file readable");
		return IST_BAD_PLUGIN;
	}
	why = check_file(fd);
	close(fd);
	if (why)
		return bad(err, real, why);
	lib = dlopen(real, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		why = dlerror();
		return bad(err, real, why ? why : "the loader refuses it");
	}
	sym = dlsym(lib, entry);
	if (!sym) {
		char text[128];

		snprintf(text, sizeof(text), "it does not export %s", entry);
		dlclose(lib); /* not one of ours, and nothing of it was called: a rebuilt one can be tried */
		return bad(err, real, text);
	}
	*out = sym;
	return IST_OK;
}
